"""Stand-ins for libraries that a user's script calls: Weights & Biases, Ray Tune, an Optuna trial, a Trainer's callbacks."""
