"""The SQL store: connections, transactions, tables, rows of runs and layers."""
