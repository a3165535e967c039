"""From numbers of steps to the collector: batches, what waits, one connection, on the thread of the sender."""
