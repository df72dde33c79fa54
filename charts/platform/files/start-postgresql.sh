#!/bin/bash
# Starts PostgreSQL. On a volume that holds databases it first gives the roles the passwords of the chart's Secret, which
# the image does on an empty volume only: a password that changed would lock everybody out.
set -Eeuo pipefail

set_password() { # ROLE PASSWORD
  local quoted=${2//\'/\'\'}
  printf "ALTER ROLE %s PASSWORD '%s'\n" "$1" "$quoted"
}

# In a server without a network, for one client, that ends with its input. It does not end with 1 when a statement fails.
if [ -s "$PGDATA/PG_VERSION" ]; then
  {
    set_password "$POSTGRES_USER" "$POSTGRES_PASSWORD"
    set_password ledger "$LEDGER_PASSWORD"
    set_password mlflow "$MLFLOW_PASSWORD"
  } | postgres --single -D "$PGDATA" -c log_min_error_statement=panic postgres >/dev/null
fi

exec docker-entrypoint.sh "$@"
