//! Content type of a file, by the extension of its name. Pure.

/// Value of `Content-Type` for a file with this name. Text formats get `charset=utf-8`.
pub fn content_type(name: &[u8]) -> &'static str {
    let guessed = guess(name);
    let text = match guessed {
        // Web pages need a charset: without one, browsers would guess the encoding.
        "text/html" => "text/html; charset=utf-8",
        "text/css" => "text/css; charset=utf-8",
        "text/javascript" | "application/javascript" => "text/javascript; charset=utf-8",
        "text/plain" => "text/plain; charset=utf-8",
        "text/markdown" => "text/markdown; charset=utf-8",
        "text/csv" => "text/csv; charset=utf-8",
        other => other,
    };
    if text.is_empty() { "application/octet-stream" } else { text }
}

/// Whether compression makes a file with this name shorter. convey looks up precompressed forms
/// only for such files.
pub fn is_compressible(name: &[u8]) -> bool {
    let kind = guess(name);
    let (of, sub) = kind.split_once('/').unwrap_or_default();
    match of {
        "text" => true,
        "image" => matches!(sub, "svg+xml" | "bmp" | "x-icon" | "vnd.microsoft.icon"),
        "font" => matches!(sub, "ttf" | "otf" | "sfnt" | "collection"),
        "audio" | "video" => false,
        "application" => !matches!(
            sub,
            "zip"
                | "gzip"
                | "zstd"
                | "x-7z-compressed"
                | "x-bzip2"
                | "x-xz"
                | "x-gzip"
                | "octet-stream"
                | "pdf"
        ),
        // The name has no extension, so the type is unknown.
        "" => true,
        _ => true,
    }
}

fn guess(name: &[u8]) -> &'static str {
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let ending = file.iter().rposition(|byte| *byte == b'.').map(|dot| &file[dot + 1..]);
    let ending = ending.and_then(|ending| std::str::from_utf8(ending).ok()).unwrap_or_default();
    mime_guess::from_ext(ending).first_raw().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_the_name_says_what_a_file_is() {
        for (name, expected, compressible) in [
            ("index.html", "text/html; charset=utf-8", true),
            ("a/b.CSS", "text/css; charset=utf-8", true),
            ("app.min.js", "text/javascript; charset=utf-8", true),
            ("app.mjs", "text/javascript; charset=utf-8", true),
            ("data.json", "application/json", true),
            ("feed.xml", "text/xml", true),
            ("logo.svg", "image/svg+xml", true),
            ("mod.wasm", "application/wasm", true),
            ("photo.jpg", "image/jpeg", false),
            ("photo.webp", "image/webp", false),
            ("film.mp4", "video/mp4", false),
            ("f.woff2", "font/woff2", false),
            ("a.zip", "application/zip", false),
            ("README", "application/octet-stream", true),
            ("a.tar/README", "application/octet-stream", true),
            ("x.nobody-knows", "application/octet-stream", true),
        ] {
            assert_eq!(
                (content_type(name.as_bytes()), is_compressible(name.as_bytes())),
                (expected, compressible),
                "{name}"
            );
        }
    }
}
