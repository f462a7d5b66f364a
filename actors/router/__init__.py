"""The router: advises frontends which replica of a model a request had best be submitted to."""
