"""Evidence: times, taken in turn so that a machine whose speed drifts treats all alike."""
