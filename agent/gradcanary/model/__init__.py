"""What there is to watch: layers, parameters, shards, the training loop. Nothing here launches a kernel."""
