"""One file per method that is trained, found by listing the folder.

A recipe module has `WORDS`, the size of the vocabulary its loss reads; `SETTINGS`, its schedule; `AFTER`, the
methods whose trained parameters it starts from; and `make(parts, words, taps, before)`, where `before` are
those parameters by method, none for a training that goes on from what is shipped. The loss is
`objective.Recipe`'s.
"""
