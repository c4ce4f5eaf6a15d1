"""Measuring, predicting and picturing how training scales on a cluster."""
