//! The C interface of twinkle_text.h. No panic crosses it: panics come back as error texts.
#![deny(warnings)]

mod chat;
mod guard;
mod json;
mod limits;
#[cfg(test)]
mod limits_test;
mod marks;
mod operators;
mod rewrite;
mod tokenizer;

use std::ffi::{c_char, c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;

use chat::{Chat, Rendering, Request};
use limits::Stop;
use tokenizer::Text;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct RawEncoding {
    ids: *mut u32,
    begins: *mut u32,
    ends: *mut u32,
    size: usize,
}

#[repr(C)]
pub struct RawRequest {
    num_messages: usize,
    add_generation_prompt: bool,
    blocks: bool,
    turns: bool,
}

#[repr(C)]
pub struct RawStop {
    asked: Option<extern "C" fn(*mut c_void) -> bool>,
    argument: *mut c_void,
}

#[repr(C)]
pub struct RawRendering {
    text: *mut u8,
    size: usize,
    generated: *mut usize,
    num_generated: usize,
    turns: *mut usize,
    num_turns: usize,
    tools: *mut usize,
    num_tools: usize,
}

impl View {
    /// Safety: the caller's pointer holds `size` bytes for the time of the call.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        slice(self.data, self.size)
    }
    unsafe fn text<'a>(self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()).map_err(|e| format!("the text is not UTF-8: {e}"))
    }
}

unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

fn give<T>(items: Vec<T>) -> *mut T {
    Box::into_raw(items.into_boxed_slice()).cast()
}

unsafe fn take<T>(items: *mut T, size: usize) {
    if !items.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            items, size,
        )));
    }
}

fn c_text(text: String) -> *mut c_char {
    CString::new(text.replace('\0', " ")).map_or(null_mut(), CString::into_raw)
}

fn guard(body: impl FnOnce() -> Result<(), String>) -> *mut c_char {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => null_mut(),
        Ok(Err(text)) => c_text(text),
        Err(cause) => c_text(match cause.downcast_ref::<&str>() {
            Some(text) => format!("panic: {text}"),
            None => match cause.downcast_ref::<String>() {
                Some(text) => format!("panic: {text}"),
                None => "panic".into(),
            },
        }),
    }
}

fn raw(rendering: Rendering) -> RawRendering {
    let flat = |pairs: &[(usize, usize)]| pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
    let generated: Vec<usize> = flat(&rendering.generated);
    let turns: Vec<usize> = flat(&rendering.turns);
    RawRendering {
        size: rendering.text.len(),
        text: give(rendering.text.into_bytes()),
        num_generated: rendering.generated.len(),
        generated: give(generated),
        num_turns: rendering.turns.len(),
        turns: give(turns),
        num_tools: rendering.tools.len(),
        tools: give(rendering.tools),
    }
}

/// # Safety
/// `text` came from this library and is not used again.
#[no_mangle]
pub unsafe extern "C" fn twinkle_text_free(text: *mut c_char) {
    if !text.is_null() {
        drop(CString::from_raw(text));
    }
}

/// # Safety
/// Views and `out` are valid for the call.
#[no_mangle]
pub unsafe extern "C" fn twinkle_tokenizer_open(
    json: View,
    settings: View,
    out: *mut *mut Text,
) -> *mut c_char {
    guard(|| {
        let text = Text::new(json.bytes(), settings.text()?)?;
        *out = Box::into_raw(Box::new(text));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` came from twinkle_tokenizer_open and is not used again.
#[no_mangle]
pub unsafe extern "C" fn twinkle_tokenizer_close(tokenizer: *mut Text) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// The handle is open; the view and `out` are valid for the call.
#[no_mangle]
pub unsafe extern "C" fn twinkle_tokenizer_encode(
    tokenizer: *const Text,
    text: View,
    special: bool,
    trimmed: bool,
    out: *mut RawEncoding,
) -> *mut c_char {
    guard(|| {
        let encoded = (*tokenizer).encode(text.text()?, special, trimmed)?;
        *out = RawEncoding {
            size: encoded.ids.len(),
            ids: give(encoded.ids),
            begins: give(encoded.begins),
            ends: give(encoded.ends),
        };
        Ok(())
    })
}

/// # Safety
/// `encoding` came from twinkle_tokenizer_encode and is not used again.
#[no_mangle]
pub unsafe extern "C" fn twinkle_encoding_free(encoding: RawEncoding) {
    take(encoding.ids, encoding.size);
    take(encoding.begins, encoding.size);
    take(encoding.ends, encoding.size);
}

/// # Safety
/// The handle is open; `ids` holds `num_ids` ids; `out` is valid for the call.
#[no_mangle]
pub unsafe extern "C" fn twinkle_tokenizer_decode(
    tokenizer: *const Text,
    ids: *const u32,
    num_ids: usize,
    skip_special: bool,
    out: *mut RawRendering,
) -> *mut c_char {
    guard(|| {
        let text = (*tokenizer).decode(slice(ids, num_ids), skip_special)?;
        *out = raw(Rendering {
            text,
            ..Default::default()
        });
        Ok(())
    })
}

/// # Safety
/// The handle is open; the view is valid for the call.
#[no_mangle]
pub unsafe extern "C" fn twinkle_tokenizer_id(tokenizer: *const Text, token: View) -> i64 {
    catch_unwind(AssertUnwindSafe(|| {
        (*tokenizer).id(token.text().unwrap_or_default())
    }))
    .ok()
    .flatten()
    .map_or(-1, i64::from)
}

/// # Safety
/// The handle is open.
#[no_mangle]
pub unsafe extern "C" fn twinkle_tokenizer_token(tokenizer: *const Text, id: u32) -> *mut c_char {
    catch_unwind(AssertUnwindSafe(|| (*tokenizer).token(id)))
        .ok()
        .flatten()
        .map_or(null_mut(), c_text)
}

/// # Safety
/// The handle is open.
#[no_mangle]
pub unsafe extern "C" fn twinkle_tokenizer_size(tokenizer: *const Text) -> usize {
    catch_unwind(AssertUnwindSafe(|| (*tokenizer).size())).unwrap_or(0)
}

/// # Safety
/// The view and `out` are valid for the call.
#[no_mangle]
pub unsafe extern "C" fn twinkle_chat_open(source: View, out: *mut *mut Chat) -> *mut c_char {
    guard(|| {
        let chat = Chat::new(source.text()?)?;
        *out = Box::into_raw(Box::new(chat));
        Ok(())
    })
}

/// # Safety
/// `chat` came from twinkle_chat_open and is not used again.
#[no_mangle]
pub unsafe extern "C" fn twinkle_chat_close(chat: *mut Chat) {
    if !chat.is_null() {
        drop(Box::from_raw(chat));
    }
}

/// # Safety
/// The handle is open.
#[no_mangle]
pub unsafe extern "C" fn twinkle_chat_has_generation(chat: *const Chat) -> bool {
    (*chat).has_generation
}

/// # Safety
/// The handle is open; `requests` and `out` hold `num_requests` items.
#[no_mangle]
pub unsafe extern "C" fn twinkle_chat_render(
    chat: *const Chat,
    context: View,
    requests: *const RawRequest,
    num_requests: usize,
    stop: RawStop,
    out: *mut RawRendering,
) -> *mut c_char {
    guard(|| {
        let stop = stop.asked.map(|asked| Stop {
            asked,
            argument: stop.argument,
        });
        let requests: Vec<Request> = slice(requests, num_requests)
            .iter()
            .map(|r| Request {
                num_messages: r.num_messages,
                add_generation_prompt: r.add_generation_prompt,
                blocks: r.blocks,
                turns: r.turns,
            })
            .collect();
        for (i, rendering) in (*chat)
            .render(context.text()?, &requests, stop)?
            .into_iter()
            .enumerate()
        {
            out.add(i).write(raw(rendering));
        }
        Ok(())
    })
}

/// # Safety
/// `rendering` came from this library and is not used again.
#[no_mangle]
pub unsafe extern "C" fn twinkle_rendering_free(rendering: RawRendering) {
    take(rendering.text, rendering.size);
    take(rendering.generated, 2 * rendering.num_generated);
    take(rendering.turns, 2 * rendering.num_turns);
    take(rendering.tools, rendering.num_tools);
}
