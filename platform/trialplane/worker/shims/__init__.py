"""Stand-ins for what a user's script talks to: Weights & Biases, Ray Tune, an Optuna trial, a Trainer's callbacks."""
