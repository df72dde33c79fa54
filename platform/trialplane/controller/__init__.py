"""What runs in the head: asks the ledger, hands trials to slots, tells results once, records them in MLflow."""
