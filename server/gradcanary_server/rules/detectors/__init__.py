"""One file for each detector: the steps of a run in, votes about its layers out."""
