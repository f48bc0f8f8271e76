use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::request::UsageEvent;
use crate::splice::Splice;

const TYPE: &str = "multipart/form-data; boundary=b";

fn form(body: &str) -> Result<RequestScan, ScanError> {
    scan(TYPE, body.as_bytes())
}

fn field(name: &str, value: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn malformed(body: &str) -> (&'static str, usize) {
    match form(body) {
        Err(ScanError::Form(FormError::Malformed { reason, offset })) => (reason, offset),
        other => panic!("{other:?} of {body:?}"),
    }
}

#[test]
fn the_model_is_found_among_files_and_its_span_is_its_value() {
    let file = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n\
                \0\u{1}--b\r\n--bx\r\n--c--\r\n\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nno\r\n";
    let body = format!(
        "{file}{}{}{}--b--\r\n",
        field("prompt", "say\r\nit"),
        field("model", "whisper"),
        field("stream", "True")
    );
    let scan = form(&body).unwrap();
    assert_eq!((scan.model.as_str(), &body[scan.model_span.clone()]), ("whisper", "whisper"));
    assert!(scan.stream);
    assert_eq!(&body[scan.segments[0].span.clone()], "say\r\nit");
    assert_eq!(scan.edits("whisper", UsageEvent::Ask), []);
    let [edit] = <[_; 1]>::try_from(scan.edits("org/big \"one\"", UsageEvent::Ask)).unwrap();
    assert_eq!(edit.replacement, "org/big \"one\"", "a form has no escapes");
}

#[test]
fn preamble_epilogue_and_padding_are_read_over() {
    let model = field("model", "m");
    let padded = model.replacen("--b\r\n", "--b \t \r\n", 1);
    let decoy = field("model", "other");
    for body in [
        format!("{model}--b--"),
        format!("{model}--b--\r\n"),
        format!("{model}--b-- \t\r\n"),
        format!("{padded}--b--"),
        format!("to whom it may concern --b\r\nand others\r\n{model}--b--"),
        format!("\r\n{model}--b--\r\n{decoy}--b--"),
        format!("{model}--b--\r\nanything at all --b\r\n"),
    ] {
        assert_eq!(form(&body).map(|scan| scan.model), Ok("m".to_owned()), "{body:?}");
    }
}

#[test]
fn header_names_and_parameters_come_in_every_form_that_the_grammar_has() {
    for disposition in [
        "Content-Disposition: form-data; name=model",
        "content-disposition:form-data;name=\"model\"",
        "CONTENT-DISPOSITION: Form-Data ; NAME = \"model\" ; ",
        "Content-Disposition: form-data; name=\"model\"; x=\"a;b\\\"\"",
        "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=\"model\"",
        "Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: 8BIT",
    ] {
        let body = format!("--b\r\n{disposition}\r\n\r\nm\r\n--b--\r\n");
        assert_eq!(form(&body).map(|scan| scan.model), Ok("m".to_owned()), "{disposition}");
    }
}

#[test]
fn a_boundary_is_read_as_the_content_type_writes_it() {
    let with = |content_type: &str, boundary: &str| {
        let body = format!("{}--b--", field("model", "m")).replace("--b", &format!("--{boundary}"));
        scan(content_type, body.as_bytes()).map(|scan| scan.model)
    };
    let longest = "x".repeat(70);
    for (content_type, boundary) in [
        ("multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxk", "----WebKitFormBoundary7MA4YWxk"),
        ("Multipart/Form-Data;charset=utf-8;BOUNDARY=\"a b:c\"", "a b:c"),
        ("multipart/form-data; boundary='()+_,-./:=?", "'()+_,-./:=?"),
        ("multipart/form-data; boundary=x; charset=utf-8", "x"),
        (&format!("multipart/form-data; boundary={longest}"), &longest),
    ] {
        assert!(is_form(content_type));
        assert_eq!(with(content_type, boundary), Ok("m".to_owned()), "{content_type}");
    }
    for content_type in ["multipart/form-data", "multipart/form-data; charset=x", "multipart/form-data;"] {
        assert_eq!(with(content_type, "b"), Err(FormError::NoBoundary.into()), "{content_type}");
    }
    for boundary in [
        "",
        "\"\"",
        "\"b",
        "b; boundary=b",
        "\"b \"",
        "b\"c",
        "\"b\"c",
        "é",
        "\"a;b\"",
        "a\\b",
        "\"a\\,b\"",
        &format!("{longest}x"),
    ] {
        let content_type = format!("multipart/form-data; boundary={boundary}");
        assert_eq!(with(&content_type, "b"), Err(FormError::InvalidBoundary.into()), "{boundary}");
    }
    assert!(!is_form("multipart/mixed; boundary=b"));
    assert!(!is_form("application/json"));
}

#[test]
fn a_field_that_lax_parsers_take_for_one_that_is_acted_on_is_refused() {
    let model = field("model", "m");
    let with = |name: &str, value: &str| form(&format!("{model}{}--b--", field(name, value)));
    for name in ["Model", "MODEL", " model", "model ", "model\u{0}", "model[]", "model[0]", "Model[x]"] {
        assert!(matches!(with(name, "x"), Err(ScanError::Misspelt("model") | ScanError::Duplicate("model"))), "{name}");
        let alone = form(&format!("{}--b--", field(name, "x")));
        assert_eq!(alone, Err(ScanError::Misspelt("model")), "{name}");
    }
    assert_eq!(with("\u{17f}tream", "1"), Err(ScanError::Misspelt("stream")));
    assert_eq!(with("N", "1"), Err(ScanError::Misspelt("n")));
    let twice = |name: &str| form(&format!("{model}{}{}--b--", field(name, "1"), field(name, "1")));
    for name in ["stream", "prompt", "n"] {
        assert_eq!(twice(name), Err(ScanError::Duplicate(name)));
    }
    assert!(twice("timestamp_granularities[]").is_ok());
}

#[test]
fn a_forms_numbers_and_booleans_are_what_the_laxest_server_reads() {
    let with = |name: &str, value: &str| form(&format!("{}{}--b--", field("model", "m"), field(name, value)));
    for (value, stream) in [("true", true), ("1", true), ("Yes", true), ("false", false), ("off", false), ("", false)] {
        assert_eq!(with("stream", value).unwrap().stream, stream, "{value}");
    }
    assert_eq!(with("stream", "2"), Err(ScanError::NotASwitch("stream")));
    for (value, choices) in [("3", 3), (" 3.0", 3), ("", 1), ("-1", 1), ("99999", 16_384)] {
        assert_eq!(with("n", value).unwrap().choices, choices, "{value}");
    }
    assert_eq!(with("n", "3.5"), Err(ScanError::NotACount("n")));
}

#[test]
fn each_fault_of_a_form_has_its_own_error() {
    let model = field("model", "m");
    assert_eq!(form(""), Err(FormError::Empty.into()));
    assert_eq!(form(r#"{"model":"m"}"#), Err(FormError::NoDelimiter.into()));
    assert_eq!(form("x--b\r\n"), Err(FormError::NoDelimiter.into()));
    assert_eq!(form(&model), Err(FormError::Truncated.into()));
    assert_eq!(form(&format!("{model}--b")), Err(FormError::Truncated.into()));
    assert_eq!(form(&format!("{model}--b-")), Err(FormError::Truncated.into()));
    assert_eq!(form("--b--"), Err(ScanError::NoModel));
    assert_eq!(form(&format!("{}--b--", field("model", ""))), Err(ScanError::ModelNotAString));
    assert_eq!(form(&format!("{model}{model}--b--")), Err(ScanError::Duplicate("model")));
    let file = model.replace("\"model\"", "\"model\"; filename=\"x\"");
    assert_eq!(form(&format!("{file}--b--")), Err(FormError::NotText("model").into()));
    assert_eq!(form(&format!("{file}{model}--b--")), Err(FormError::NotText("model").into()));
    assert_eq!(form(&format!("{model}{file}--b--")), Err(ScanError::Duplicate("model")));
    let coded = model.replace("\r\n\r\n", "\r\nContent-Transfer-Encoding: base64\r\n\r\n");
    assert_eq!(form(&format!("{coded}--b--")), Err(FormError::NotText("model").into()));
    let mut not_text = format!("{}--b--", field("model", "?")).into_bytes();
    let at = not_text.iter().position(|byte| *byte == b'?').unwrap();
    not_text[at] = 0xff;
    assert_eq!(scan(TYPE, &not_text), Err(ScanError::ModelNotAString));
}

#[test]
fn what_two_parsers_may_read_differently_is_refused() {
    let model = field("model", "m");
    assert_eq!(malformed(&format!("{model}--b x\r\n--b--")), ("a line that is nearly a boundary", model.len()));
    assert_eq!(malformed(&format!("{model}--b\n--b--")).0, "a line that is nearly a boundary");
    assert_eq!(malformed(&format!("{model}--b--x\r\n")).0, "a line that is nearly a boundary");
    assert_eq!(malformed(&format!("--b\r\n{model}--b--")), ("a part without headers", 3));
    assert_eq!(malformed("--b\r\n\r\nm\r\n--b--").0, "a part without a name");
    let with = |headers: &str| malformed(&format!("--b\r\n{headers}\r\n\r\nm\r\n--b--")).0;
    assert_eq!(with("Content-Type: text/plain"), "a part without a name");
    assert_eq!(with("Content-Disposition: form-data; name=a;\r\n name=model"), "a folded header");
    assert_eq!(with("Content-Disposition"), "a header without a colon");
    let name = "Content-Disposition: form-data; name=\"a\"";
    assert_eq!(with(&format!("{name}\r\n{name}")), "a second content-disposition");
    for parameters in [
        "name=a; name=model",
        "name*=utf-8''model",
        "name*0=mo; name*1=del",
        "name=\"model",
        "name=\"a\"model",
        "name=\"mo\\del\"",
        "name=\"a\\\"b\"",
        "x=\"; name=model\"; name=a",
        "filename=\" name=model\"; name=a",
        "name",
        "x",
    ] {
        assert_eq!(with(&format!("Content-Disposition: form-data; {parameters}")), "a content-disposition");
    }
    for disposition in ["attachment; name=model", "form-data", "; name=model"] {
        assert_eq!(with(&format!("Content-Disposition: {disposition}")), "a content-disposition");
    }
    // The line end that a boundary claims cannot end the headers as well.
    assert_eq!(
        malformed(&format!("--b\r\n{name}\r\n\r\n--b\r\n{name}\r\n\r\nm\r\n--b--")).0,
        "a part whose headers do not end"
    );
}

#[test]
fn a_form_of_megabytes_costs_no_more_than_its_bytes() {
    let dashes = "-".repeat(1 << 20);
    let nearly = "\r\n--bb".repeat(1 << 16);
    let body = format!("{}{}{}--b--", field("x", &dashes), field("y", &nearly), field("model", "m"));
    assert_eq!(form(&body).unwrap().model, "m");
    let parts = field("include[]", "1").repeat(20_000);
    assert_eq!(form(&format!("{parts}{}--b--", field("model", "m"))).unwrap().segments, []);
}

/// A form as a test knows it: names, file names and values.
type Form = Vec<(String, Option<String>, Vec<u8>)>;

fn written(form: &Form, boundary: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, value) in form {
        let file = file.as_ref().map(|file| format!("; filename=\"{file}\"\r\nContent-Type: audio/wav"));
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{}\r\n\r\n",
            file.unwrap_or_default()
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body
}

/// Reads what [`written`] writes, by splitting: as slow and as plain as can be.
fn parsed(body: &[u8], boundary: &str) -> Form {
    let text: String = body.iter().map(|byte| char::from(*byte)).collect();
    let bytes = |text: &str| text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect::<Vec<u8>>();
    let (text, _) = text.split_once(&format!("--{boundary}--\r\n")).unwrap();
    let parts = format!("\r\n{text}");
    parts
        .split(&format!("\r\n--{boundary}\r\n"))
        .skip(1)
        .map(|part| {
            let (head, value) = part.split_once("\r\n\r\n").unwrap();
            let quoted = |name: &str| {
                let (_, rest) = head.split_once(&format!("{name}=\""))?;
                Some(String::from_utf8(bytes(rest.split_once('"')?.0)).unwrap())
            };
            let value = value.strip_suffix("\r\n").unwrap_or(value);
            (quoted("; name").unwrap(), quoted("filename"), bytes(value))
        })
        .collect()
}

fn any_form() -> impl Strategy<Value = Form> {
    let piece = prop_oneof![
        Just(b"\r\n--".to_vec()),
        Just(b"\r\n--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nno".to_vec()),
        Just(b"--Boundary".to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    let value = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    let other = ("[a-z]{2,3}", prop::option::of("[a-z]{1,5}\\.wav"), value);
    (prop::collection::vec(other, 0..5), "[a-zA-Z0-9/:._ é\"\\\\-]{1,20}", any::<prop::sample::Index>()).prop_map(
        |(mut form, model, at)| {
            let at = at.index(form.len() + 1);
            form.insert(at, ("model".to_owned(), None, model.into_bytes()));
            form
        },
    )
}

const BOUNDARY: &str = "BoundaryThatNoValueHas";

proptest! {
    #[test]
    fn the_model_is_found_in_any_form_and_splicing_then_parsing_equals_parsing_then_editing(
        form in any_form(), model in "[a-zA-Z0-9/:._ é\"\\\\-]{1,20}",
    ) {
        let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
        let body = written(&form, BOUNDARY);
        let scan = scan(&content_type, &body).unwrap();
        let asked = form.iter().find(|(name, ..)| name == "model").unwrap();
        prop_assert_eq!(scan.model.as_bytes(), &asked.2);
        prop_assert_eq!(&body[scan.model_span.clone()], &asked.2);
        prop_assert_eq!(&parsed(&body, BOUNDARY), &form, "the reference reads what was written");

        let splice = Splice::new(scan.edits(&model, UsageEvent::Ask), body.len()).unwrap();
        let spliced = splice.apply(&Bytes::from(body));
        let mut edited = form;
        edited.iter_mut().find(|(name, ..)| name == "model").unwrap().2 = model.into_bytes();
        prop_assert_eq!(parsed(&spliced, BOUNDARY), edited);
    }

    #[test]
    fn no_bytes_make_it_panic_and_what_passes_has_one_model(
        form in any_form(), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in any::<prop::sample::Index>(),
    ) {
        let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
        let mut body = written(&form, BOUNDARY);
        for (at, byte) in flips {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Ok(scan) = scan(&content_type, &body) {
            prop_assert_eq!(scan.model.as_bytes(), &body[scan.model_span.clone()]);
        }
        // Whatever is missing at the end, nothing passes that was not closed.
        let whole = written(&form, BOUNDARY);
        let cut = cut.index(whole.len() - "--\r\n".len());
        prop_assert!(scan(&content_type, &whole[..cut]).is_err());
    }

    #[test]
    fn any_content_type_and_any_body_are_read_without_panic(content_type in any::<String>(), body in any::<Vec<u8>>()) {
        let _ = scan(&content_type, &body);
        let _ = scan(&format!("multipart/form-data; boundary=b{content_type}"), &body);
    }
}
