"""Words and pure rules: standard library and numpy only, no input or output."""
