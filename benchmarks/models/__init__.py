"""The models people run, built offline with random weights, and what is measured of each.

`registry` names them, `huggingface`, `extras` and `image` build them, `check` judges one in its own
process, `run` is the command, `page` writes docs/models.md from the rows.
"""
