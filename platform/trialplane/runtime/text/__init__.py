"""What the text jobs share: labelled rows, tokenizers, encoders, spans and scores. A job of another kind needs none."""
