"""twinkle.server.common by its older name."""

from twinkle.server.common import datum_to_input_feature, input_feature_to_datum

__all__ = ["datum_to_input_feature", "input_feature_to_datum"]
