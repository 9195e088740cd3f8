//! Arguments and results on the stack of an op. The op owns its arguments; the caller owns the results.

use std::collections::VecDeque;
use std::ffi::c_void;

use crate::error::Error;
use crate::shim::{Shim, Tensor, ok, shim};

/// An argument of an op.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of schemas")]
pub enum Argument {
    Tensor(Tensor),
    NoTensor,
    Tensors(Vec<Tensor>),
    Text(String),
    Bool(bool),
    Int(i64),
    Ints(Vec<i64>),
    Dtype(i32),
}

/// The arguments of a call, in the order of the schema.
#[derive(Debug)]
pub struct Arguments(VecDeque<Argument>);

/// The results of a call.
#[derive(Debug)]
pub enum Results {
    /// As many results as the schema has.
    Tensors(Vec<Tensor>),
    /// One result, a list.
    List(Vec<Tensor>),
}

/// The types of a schema's parameters, such as `Tensor?` and `int[]`.
pub fn parameter_types(schema: &str) -> Vec<&str> {
    let inner = schema.split_once('(').map_or("", |(_, rest)| rest);
    let inner = inner.split_once(')').map_or("", |(parameters, _)| parameters);
    inner
        .split(',')
        .filter_map(|parameter| parameter.split_whitespace().next())
        .filter(|ty| *ty != "*")
        .collect()
}

impl Arguments {
    /// Takes all arguments, so that none leaks if the op fails.
    ///
    /// # Safety
    /// The stack has the arguments of the schema.
    pub unsafe fn take(stack: *const u64, schema: &str) -> Result<Arguments, Error> {
        let shim = shim()?;
        let mut taken = VecDeque::new();
        for (index, ty) in parameter_types(schema).into_iter().enumerate() {
            // SAFETY: the caller vouches for the stack and for the types of its arguments.
            taken.push_back(unsafe { argument(shim, *stack.add(index), ty)? });
        }
        Ok(Arguments(taken))
    }

    fn next(&mut self) -> Option<Argument> {
        self.0.pop_front()
    }

    /// The next argument, a tensor.
    pub fn tensor(&mut self) -> Result<Tensor, Error> {
        match self.next() {
            Some(Argument::Tensor(tensor)) => Ok(tensor),
            other => Err(mismatch("Tensor", &other)),
        }
    }

    /// The next argument, a tensor or none.
    pub fn optional(&mut self) -> Result<Option<Tensor>, Error> {
        match self.next() {
            Some(Argument::Tensor(tensor)) => Ok(Some(tensor)),
            Some(Argument::NoTensor) => Ok(None),
            other => Err(mismatch("Tensor?", &other)),
        }
    }

    /// The next argument, tensors.
    pub fn tensors(&mut self) -> Result<Vec<Tensor>, Error> {
        match self.next() {
            Some(Argument::Tensors(tensors)) => Ok(tensors),
            other => Err(mismatch("Tensor[]", &other)),
        }
    }

    /// The next argument, text.
    pub fn text(&mut self) -> Result<String, Error> {
        match self.next() {
            Some(Argument::Text(text)) => Ok(text),
            other => Err(mismatch("str", &other)),
        }
    }

    /// The next argument, a switch.
    pub fn switch(&mut self) -> Result<bool, Error> {
        match self.next() {
            Some(Argument::Bool(value)) => Ok(value),
            other => Err(mismatch("bool", &other)),
        }
    }

    /// The next argument, a number.
    pub fn int(&mut self) -> Result<i64, Error> {
        match self.next() {
            Some(Argument::Int(value)) => Ok(value),
            other => Err(mismatch("int", &other)),
        }
    }

    /// The next argument, numbers.
    pub fn ints(&mut self) -> Result<Vec<i64>, Error> {
        match self.next() {
            Some(Argument::Ints(values)) => Ok(values),
            other => Err(mismatch("int[]", &other)),
        }
    }

    /// The next argument, the number of a dtype.
    pub fn dtype(&mut self) -> Result<i32, Error> {
        match self.next() {
            Some(Argument::Dtype(number)) => Ok(number),
            other => Err(mismatch("ScalarType", &other)),
        }
    }
}

fn mismatch(expected: &str, found: &Option<Argument>) -> Error {
    Error::Bug(format!("the next argument is {found:?}, not {expected}"))
}

/// # Safety
/// The word is an argument of the type.
unsafe fn argument(shim: &Shim, word: u64, ty: &str) -> Result<Argument, Error> {
    let pointer = word as *mut c_void;
    Ok(match ty {
        "Tensor" => Argument::Tensor(Tensor(pointer)),
        "Tensor?" if pointer.is_null() => Argument::NoTensor,
        "Tensor?" => {
            let slot = pointer.cast::<u64>();
            // SAFETY: the argument points to a word, which is ours to free.
            unsafe {
                let tensor = Tensor(*slot as *mut c_void);
                (shim.free_optional)(slot);
                Argument::Tensor(tensor)
            }
        }
        // SAFETY: the caller vouches for the type.
        "Tensor[]" => unsafe {
            Argument::Tensors(
                list(shim, pointer)?.into_iter().map(|word| Tensor(word as *mut c_void)).collect(),
            )
        },
        // SAFETY: as above.
        "int[]" => unsafe {
            Argument::Ints(list(shim, pointer)?.into_iter().map(u64::cast_signed).collect())
        },
        // SAFETY: as above.
        "str" => unsafe { Argument::Text(text(shim, pointer)?) },
        "bool" => Argument::Bool(word & 0xff != 0),
        "int" => Argument::Int(word.cast_signed()),
        "ScalarType" => Argument::Dtype((word as u32).cast_signed()),
        other => return Err(Error::Bug(format!("the schema has the type {other}"))),
    })
}

/// # Safety
/// The pointer is a list, which is ours to free.
unsafe fn list(shim: &Shim, list: *mut c_void) -> Result<Vec<u64>, Error> {
    let mut size = 0;
    // SAFETY: the caller vouches for the list.
    ok(unsafe { (shim.list_size)(list, &raw mut size) }, "a list")?;
    let mut words = vec![0; size];
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the index is in range.
        ok(unsafe { (shim.list_get)(list, index, word) }, "a list")?;
    }
    // SAFETY: the list is ours.
    ok(unsafe { (shim.list_delete)(list) }, "a list")?;
    Ok(words)
}

/// # Safety
/// The pointer is a string, which is ours to free.
unsafe fn text(shim: &Shim, string: *mut c_void) -> Result<String, Error> {
    let (mut len, mut data) = (0, std::ptr::null());
    // SAFETY: the caller vouches for the string.
    unsafe {
        ok((shim.string_length)(string, &raw mut len), "a string")?;
        ok((shim.string_data)(string, &raw mut data), "a string")?;
        let bytes = std::slice::from_raw_parts(data.cast::<u8>(), len).to_vec();
        ok((shim.string_delete)(string), "a string")?;
        String::from_utf8(bytes).map_err(|_| Error::argument("a string is not UTF-8"))
    }
}

impl Results {
    /// Puts the results on the stack.
    ///
    /// # Safety
    /// The stack has room for `count` words.
    pub unsafe fn put(self, stack: *mut u64, count: u64) -> Result<(), Error> {
        let words = match self {
            Results::Tensors(tensors) => tensors.into_iter().map(release).collect::<Vec<u64>>(),
            Results::List(tensors) => {
                let shim = shim()?;
                let mut list = std::ptr::null_mut();
                // SAFETY: the list is new, and takes the references.
                unsafe {
                    ok((shim.list_new)(tensors.len(), &raw mut list), "a list")?;
                    for tensor in tensors {
                        ok((shim.list_push)(list, release(tensor)), "a list")?;
                    }
                }
                vec![list as u64]
            }
        };
        if words.len() as u64 != count {
            return Err(Error::Bug(format!("the op has {} results, not {count}", words.len())));
        }
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: the caller vouches for the room.
            unsafe { *stack.add(index) = word };
        }
        Ok(())
    }
}

fn release(tensor: Tensor) -> u64 {
    let word = tensor.0 as u64;
    std::mem::forget(tensor);
    word
}

#[cfg(test)]
mod tests {
    use super::parameter_types;

    #[test]
    fn types_of_parameters() {
        let schema = "f(Tensor a, Tensor? b=None, *, str c=\"x\", int[] d, bool e=False) -> (Tensor, Tensor)";
        assert_eq!(parameter_types(schema), ["Tensor", "Tensor?", "str", "int[]", "bool"]);
        assert!(parameter_types("f() -> Tensor").is_empty());
    }
}
