"""Model runners: from packed inputs to tokens on a device. Torch begins here."""
