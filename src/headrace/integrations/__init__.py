"""Other people's tools, one module each; none of them is imported unless the user did."""
