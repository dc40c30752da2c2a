"""Commands on stores: one module per subcommand of ``headrace store``."""
