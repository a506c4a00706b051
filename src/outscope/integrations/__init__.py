"""Where Outscope plugs into other libraries: one thin module for each, behind its own extra."""
