"""Many devices improve one model without their data leaving them: rules, and the words on the wire.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (2017).
"""
