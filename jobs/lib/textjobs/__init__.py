"""What the text jobs share: labelled rows, tokenizers, encoders, spans and scores. A job of another kind needs none.

It travels with each of these jobs, by `packages` in job.yaml. trialplane never imports it.
"""
