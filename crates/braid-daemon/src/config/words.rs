//! Enums that the file names by words.

/// Defines an enum of keywords, its names in the order of the documentation.
macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// The accepted keywords.
            pub const NAMES: &'static [&'static str] = &[$($name),+];
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($type::$variant => $name),+
                })
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($name => Ok($type::$variant),)+
                    _ => Err(format!(
                        concat!("no ", $what, " {:?}; there are {}"),
                        text,
                        Self::NAMES.join(", ")
                    )),
                }
            }
        }
    };
}

pub(super) use words;
