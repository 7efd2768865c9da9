"""One of each kind of thing that a package can add to npucompose. Nothing here is imported before it is asked for."""
