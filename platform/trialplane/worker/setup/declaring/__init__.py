"""Find the arguments that a script declares to a parser, by running it up to the point where it reads them.

Supported are argparse, click and libraries based on them (typer, simple-parsing, transformers, plac, pydantic-settings),
optparse, tyro, pyrallis, draccus, absl with ml_collections, docopt, fire, jsonargparse with LightningCLI, OmegaConf, yacs,
and a function or method of the script's own that merges `sys.argv[1:]` into a configuration.

`python -m trialplane.worker.setup.declaring SCRIPT FILE MODULE [ARGUMENT ...]` is started in the folder in which the script
runs, and writes FILE, a `Declared` in JSON. MODULE is "" for a script that is run as a file. The process ends when the
script reads its arguments, so the rest of the script does not run, and the arguments need not be complete. If the script
ends without reading any, its function `main` is called, as an entry point of its package would.

With arguments, these are those of a command that a user types. Defaults are then the values that argparse reads from them,
also from a settings file that they name, as with ConfigArgParse.
"""
