"""The HTTP interface: routes, the types of their answers, and errors as JSON."""
