"""A set of 24 trainings with their truth: the words of incidents are held against it.

The set was written from the README and issue 13 alone, with no source of the product read. See ``truth.py``.
"""
