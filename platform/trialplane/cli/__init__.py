"""The command `platform`: one module per verb, loaded when the verb is typed."""
