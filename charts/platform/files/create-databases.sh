#!/bin/bash
# Runs once, on the empty volume of PostgreSQL: two databases, each with an owner who cannot open the other.
set -Eeuo pipefail

create() { # NAME PASSWORD
  # The password by the environment: arguments can be read by everybody in the pod.
  PASSWORD="$2" psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres --no-psqlrc --quiet \
    --set=name="$1" <<'SQL'
\getenv password PASSWORD
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT ON DATABASE :"name" FROM PUBLIC;
SQL
}

create mlflow "$MLFLOW_PASSWORD"
create ledger "$LEDGER_PASSWORD"
