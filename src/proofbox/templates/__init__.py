"""Templates on disk: a content store by digest, the built-in ``host`` template, imports of trees and tars. Runs nothing."""
