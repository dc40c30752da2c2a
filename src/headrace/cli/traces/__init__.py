"""Commands on traces: one module per subcommand of ``headrace trace``."""
