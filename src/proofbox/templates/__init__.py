"""Templates on disk: a content store by digest, the built-in ``host``, imports of trees and tars. Runs nothing."""
