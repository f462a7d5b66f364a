"""An example of plugins for Pageant."""
