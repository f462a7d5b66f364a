"""The lifecycle actor: carries out what operators ask of a model that is being served."""
