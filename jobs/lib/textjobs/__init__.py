"""Library of the text jobs: labelled rows, tokenizers, encoders, spans and scores.

It travels with each of these jobs, by `packages` in job.yaml. trialplane never imports it.
"""
