//! EPContext nodes: regions that a model file holds, to be compiled without their graph.
//!
//! The content is the file of the region ([`crate::serialize`]), in the node or in a file beside the model. ONNX
//! Runtime stores the compatibility of a model, but does not check it when it loads one, so [`load`] checks each node.

use std::ffi::CString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::ptr;

use fourfold::executor::write_file;
use ort_sys::{OrtNode, OrtOpAttr, OrtOpAttrType};

use crate::api::{Api, c_string, call};
use crate::error::ProviderError;
use crate::graph::{Graph, Node, element};
use crate::options::{NAME, Options};
use crate::program::RegionFile;
use crate::region::EP_CONTEXT;

/// The compatibility of a context: the version of its form, and that of the library, which defines what nodes mean.
pub const COMPATIBILITY: &str = concat!("context 1; fourfold ", env!("CARGO_PKG_VERSION"));
/// [`COMPATIBILITY`] as a C string.
pub const COMPATIBILITY_C: &str = concat!("context 1; fourfold ", env!("CARGO_PKG_VERSION"), "\0");

/// True for a context node of this provider.
pub fn is_ours(node: &Node) -> bool {
    node.is_microsoft(EP_CONTEXT) && node.text("source").is_some_and(|source| source == NAME.to_bytes())
}

/// Writes the content of a context node to a temporary file, after checking it.
pub fn load(node: &Node, graph: &Graph, options: &Options) -> Result<RegionFile, ProviderError> {
    let wrong = |message: String| ProviderError::Context { node: node.name.clone(), message };
    let stated = String::from_utf8_lossy(node.text("ep_sdk_version").unwrap_or_default()).into_owned();
    if stated != COMPATIBILITY {
        return Err(wrong(format!(
            "it was made for `{stated}`, but this library is `{COMPATIBILITY}`; compile the original model again"
        )));
    }
    let content = node.text("ep_cache_context").unwrap_or_default();
    let read;
    let content = match node.int("embed_mode").unwrap_or(1) {
        1 => content,
        _ => {
            let name = String::from_utf8_lossy(content).into_owned();
            let folder = folder(graph, options);
            if !matches!(Path::new(&name).components().collect::<Vec<_>>()[..], [Component::Normal(_)]) {
                return Err(wrong(format!("`{name}` is not a file in the folder of the model")));
            }
            let path = folder.join(name);
            read = fs::read(&path).map_err(|source| ProviderError::File {
                action: "read",
                path: path.display().to_string(),
                source,
            })?;
            &read
        }
    };
    let hash = blake3::hash(content).to_hex();
    if node.text("notes") != Some(hash.as_bytes()) {
        return Err(wrong(
            "its content has changed since it was written; compile the original model again".into(),
        ));
    }
    RegionFile::create(|file| std::io::Write::write_all(file, content))
}

/// The folder of the context model: that of the file, or that which the session states for a model in memory.
fn folder(graph: &Graph, options: &Options) -> PathBuf {
    let model = if graph.model_path.as_os_str().is_empty() {
        options.context_path.clone().unwrap_or_default()
    } else {
        graph.model_path.clone()
    };
    model.parent().unwrap_or(Path::new("")).to_owned()
}

/// The path of the context model that ONNX Runtime writes.
fn written_model(graph: &Graph, options: &Options) -> PathBuf {
    options.context_path.clone().unwrap_or_else(|| {
        let stem = graph.model_path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        graph.model_path.with_file_name(format!("{stem}_ctx.onnx"))
    })
}

/// Creates the context node of a region, which ONNX Runtime owns.
///
/// # Safety
/// `ends` are the names of the fused node, and the session writes a context model.
pub unsafe fn create(
    api: Api,
    file: &RegionFile,
    graph: &Graph,
    name: &str,
    ends: &(Vec<String>, Vec<String>),
    options: &Options,
) -> Result<*mut OrtNode, ProviderError> {
    let wrong = |message: String| ProviderError::Context { node: name.to_owned(), message };
    for value in ends.0.iter().chain(&ends.1) {
        if !element::is_float(graph.element(value)) {
            let message =
                format!("`{value}` is quantized, which EPContext does not admit; quantize inside the model");
            return Err(wrong(message));
        }
    }
    let failed = |action, path: &Path| {
        let path = path.display().to_string();
        move |source| ProviderError::File { action, path, source }
    };
    let content = fs::read(&file.path).map_err(failed("read", &file.path))?;
    let Some(form) = &options.context else { return Ok(ptr::null_mut()) };
    let hash = blake3::hash(&content).to_hex();
    let stored = if form.embed {
        content
    } else {
        let model = written_model(graph, options);
        let stem = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let plain = name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
        let file = format!("{stem}_{}.fourfold", plain.collect::<String>());
        let path = model.with_file_name(&file);
        write_file(&path, &content)?;
        file.into_bytes()
    };
    if i32::try_from(stored.len()).is_err() {
        return Err(wrong("its content has over 2 GiB; set ep.context_embed_mode to 0".into()));
    }
    let texts: [(&str, &[u8]); 5] = [
        ("ep_cache_context", &stored),
        ("ep_sdk_version", COMPATIBILITY.as_bytes()),
        ("notes", hash.as_bytes()),
        ("partition_name", name.as_bytes()),
        ("source", NAME.to_bytes()),
    ];
    let mut attributes = Attributes { api, made: Vec::new() };
    for (key, text) in texts {
        // SAFETY: the text has the stated length.
        unsafe { attributes.add(key, text, OrtOpAttrType::ORT_OP_ATTR_STRING)? };
    }
    for (key, value) in [("embed_mode", i64::from(form.embed)), ("main_context", 1)] {
        // SAFETY: an integer has eight bytes; the length is their number of values.
        unsafe { attributes.add_int(key, value)? };
    }
    let name = c_string(&format!("{}{name}", form.prefix));
    // SAFETY: all texts are C strings; attributes are copied.
    unsafe { node(api, &name, ends, &mut attributes.made) }
}

/// Attributes that a node copies.
struct Attributes {
    api: Api,
    made: Vec<*mut OrtOpAttr>,
}

impl Attributes {
    unsafe fn add(&mut self, key: &str, data: &[u8], kind: OrtOpAttrType) -> Result<(), ProviderError> {
        let length = i32::try_from(data.len()).unwrap_or(i32::MAX);
        // SAFETY: the caller vouches for the kind.
        unsafe { self.make(key, data.as_ptr().cast(), length, kind) }
    }

    unsafe fn add_int(&mut self, key: &str, value: i64) -> Result<(), ProviderError> {
        // SAFETY: the pointer is to one integer.
        unsafe { self.make(key, (&raw const value).cast(), 1, OrtOpAttrType::ORT_OP_ATTR_INT) }
    }

    unsafe fn make(
        &mut self,
        key: &str,
        data: *const std::ffi::c_void,
        length: i32,
        kind: OrtOpAttrType,
    ) -> Result<(), ProviderError> {
        let (key, mut made) = (c_string(key), ptr::null_mut());
        // SAFETY: the caller vouches for the data, which are copied.
        unsafe { call!(self.api, CreateOpAttr(key.as_ptr(), data, length, kind, &raw mut made))? };
        self.made.push(made);
        Ok(())
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        for attribute in &self.made {
            // SAFETY: the attribute is ours, and a node has copied it.
            unsafe { (self.api.ort.ReleaseOpAttr)(*attribute) };
        }
    }
}

unsafe fn node(
    api: Api,
    name: &CString,
    (inputs, outputs): &(Vec<String>, Vec<String>),
    attributes: &mut [*mut OrtOpAttr],
) -> Result<*mut OrtNode, ProviderError> {
    let strings = |names: &[String]| names.iter().map(|name| c_string(name)).collect::<Vec<CString>>();
    let (inputs, outputs) = (strings(inputs), strings(outputs));
    let pointers = |names: &[CString]| names.iter().map(|name| name.as_ptr()).collect::<Vec<_>>();
    let (inputs, outputs, operator) = (pointers(&inputs), pointers(&outputs), c_string(EP_CONTEXT));
    let mut made = ptr::null_mut();
    // SAFETY: the lists have the stated lengths, and the strings behind them live until the call returns.
    unsafe {
        let editor = (api.ort.GetModelEditorApi)();
        let status = ((*editor).CreateNode)(
            operator.as_ptr(),
            c"com.microsoft".as_ptr(),
            name.as_ptr(),
            inputs.as_ptr(),
            inputs.len(),
            outputs.as_ptr(),
            outputs.len(),
            attributes.as_mut_ptr(),
            attributes.len(),
            &raw mut made,
        );
        api.checked("CreateNode", status)?;
    }
    Ok(made)
}
