//! Tokens from pictures of QR codes.

use std::path::Path;

use braid_bond::token::Token;
use braid_host::user_error::UserError;
use image::{DynamicImage, ImageReader, Limits};

/// Most memory for a picture: that of a telephone's largest.
const MAX_BYTES: u64 = 1 << 30;

/// Returns the token in a picture.
///
/// # Errors
/// The file is no picture, or shows no token.
pub fn token(picture: &Path) -> Result<String, UserError> {
    let read = || {
        let mut reader = ImageReader::open(picture)?.with_guessed_format()?;
        let mut limits = Limits::default();
        limits.max_alloc = Some(MAX_BYTES);
        reader.limits(limits);
        reader.decode().map_err(std::io::Error::other)
    };
    let image = read().map_err(|error| {
        let failure = UserError::new("picture", format!("{}: {error}", picture.display()));
        failure.fix("give a PNG or JPEG file")
    })?;
    let found = tokens(&image);
    match found.as_slice() {
        [token] => Ok(token.clone()),
        [] => Err(
            UserError::new("picture", format!("{}: no token in it", picture.display()))
                .fix("photograph the whole QR code with its light margin, sharp and from straight above, or type the token"),
        ),
        _ => Err(
            UserError::new("picture", format!("{}: it shows several tokens", picture.display()))
                .fix("cut out the one that is meant"),
        ),
    }
}

/// Returns the tokens among the QR codes of a picture, each once. One drawn light on dark, as in a terminal, counts too.
fn tokens(image: &DynamicImage) -> Vec<String> {
    let dark_on_light = image.to_luma8();
    let mut light_on_dark = dark_on_light.clone();
    image::imageops::invert(&mut light_on_dark);
    let mut found: Vec<String> = Vec::new();
    for luma in [dark_on_light, light_on_dark] {
        for grid in rqrr::PreparedImage::prepare(luma).detect_grids() {
            let Ok((_, text)) = grid.decode() else {
                continue;
            };
            let is_token = text.trim().parse::<Token>().is_ok();
            if is_token && !found.contains(&text) {
                found.push(text);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use braid_bond::proto::handshake::PublicKey;
    use braid_bond::token::Secret;
    use image::{GrayImage, Luma};
    use qrcode::{Color, EcLevel, QrCode};

    use super::*;

    fn invited(to: u8) -> String {
        let token = Token {
            hub: PublicKey([to; 32]),
            secret: Secret::new([9; 32]),
            addresses: vec!["hub.example.org:51".parse().unwrap()],
        };
        token.to_string()
    }

    /// Draws a code of four pixels a square.
    fn drawn(text: &str, dark: u8, light: u8) -> GrayImage {
        let code = QrCode::with_error_correction_level(text, EcLevel::L).unwrap();
        let side = code.width() as u32 + 8;
        GrayImage::from_fn(side * 4, side * 4, |x, y| {
            let square = |at: u32| (at / 4).checked_sub(4).filter(|at| *at < side - 8);
            let is_dark = match (square(x), square(y)) {
                (Some(x), Some(y)) => code[(x as usize, y as usize)] == Color::Dark,
                _ => false,
            };
            Luma([if is_dark { dark } else { light }])
        })
    }

    #[test]
    fn a_token_is_read_from_paper_and_from_a_dark_terminal() {
        for (dark, light) in [(0, 255), (230, 20)] {
            let picture = drawn(&invited(7), dark, light).into();
            assert_eq!(tokens(&picture), [invited(7)], "{dark} on {light}");
        }
        let link = drawn("https://example.org/", 0, 255).into();
        assert!(tokens(&link).is_empty(), "no token of ours");
    }

    #[test]
    fn pictures_without_one_token_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("code.png");
        drawn(&invited(7), 0, 255).save(&file).unwrap();
        assert_eq!(token(&file).unwrap(), invited(7));
        let code = drawn(&invited(7), 0, 255);
        let mut both = GrayImage::new(code.width() * 2, code.height());
        for (at, code) in [(0, code), (1, drawn(&invited(8), 0, 255))] {
            image::imageops::replace(&mut both, &code, i64::from(at * code.width()), 0);
        }
        both.save(&file).unwrap();
        assert!(token(&file).unwrap_err().text.contains("several tokens"));
        std::fs::write(&file, "no picture").unwrap();
        let refused = token(&file).unwrap_err();
        assert!(refused.text.contains("code.png"), "{refused}");
    }
}
