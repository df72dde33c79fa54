#!/bin/bash
# Runs once, on the empty volume of PostgreSQL: two databases, each with an owner who cannot open the other.
set -Eeuo pipefail

create() { # NAME PASSWORD
  psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres --no-psqlrc --quiet \
    --set=name="$1" --set=password="$2" <<'SQL'
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT ON DATABASE :"name" FROM PUBLIC;
SQL
}

create mlflow "$MLFLOW_PASSWORD"
create ledger "$LEDGER_PASSWORD"
