"""What the text jobs share: labelled rows, tokenizers, encoders, spans and scores. A job of another kind needs none.

It lies beside `trialplane`, which never imports it.
"""
