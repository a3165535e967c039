"""The process of the collector, its metrics, the operator's commands, and replay of stored runs."""
