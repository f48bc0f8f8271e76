//! `gzip` (RFC 1952): members, one behind the other, each with its check sum and length.

use flate2::Crc;

use super::deflate::{Inflated, Inflater};
use super::stage::{Fault, Place, Step};

/// Flags of a member's header: which fields follow.
mod flag {
    pub(super) const HEADER_CRC: u8 = 2;
    pub(super) const EXTRA: u8 = 4;
    pub(super) const NAME: u8 = 8;
    pub(super) const COMMENT: u8 = 16;
    /// Must be zero.
    pub(super) const RESERVED: u8 = 0xe0;
}

/// Bytes of a header before its optional fields.
const FIXED_BYTES: usize = 10;

/// A body whose coding is `gzip`.
#[derive(Debug)]
pub(super) struct Gzip {
    part: Part,
    inflater: Inflater,
    /// Of the member's data.
    data: Crc,
    /// Of its header.
    header: Crc,
    members: Members,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Members {
    None,
    Some,
}

/// The part of a member that is being read.
#[derive(Debug, Clone, Copy)]
enum Part {
    Fixed(Field<FIXED_BYTES>),
    ExtraLength(u8, Field<2>),
    Extra(u8, u16),
    Name(u8),
    Comment(u8),
    HeaderCrc(Field<2>),
    Data,
    Trailer(Field<8>),
}

impl Gzip {
    pub(super) fn new() -> Self {
        Self {
            part: Part::Fixed(Field::default()),
            inflater: Inflater::raw(),
            data: Crc::new(),
            header: Crc::new(),
            members: Members::None,
        }
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        let mut rest = input;
        while !matches!(self.part, Part::Data) {
            let Some((&byte, tail)) = rest.split_first() else { break };
            rest = tail;
            self.frame(byte)?;
        }
        let framed = input.len() - rest.len();
        let Part::Data = self.part else { return Ok(Step { read: framed, written: 0 }) };
        let Step { read, written } = self.inflater.step(rest, output)?;
        self.data.update(output.get(..written).unwrap_or_default());
        if self.inflater.inflated() == Inflated::Wholly {
            self.part = Part::Trailer(Field::default());
        }
        Ok(Step { read: framed + read, written })
    }

    pub(super) fn place(&self) -> Place {
        match self.part {
            Part::Fixed(field) if field.len == 0 => Place::Boundary,
            _ => Place::Within,
        }
    }

    /// Reads a byte before or behind the data.
    fn frame(&mut self, byte: u8) -> Result<(), Fault> {
        let is_checked = !matches!(self.part, Part::HeaderCrc(_) | Part::Trailer(_));
        if is_checked {
            self.header.update(&[byte]);
        }
        self.part = match self.part {
            Part::Fixed(mut field) => {
                let whole = field.push(byte);
                self.check_beginning(&field)?;
                match whole {
                    Some([.., flags, _, _, _, _, _, _]) => Self::after_fixed(flags),
                    None => Part::Fixed(field),
                }
            }
            Part::ExtraLength(flags, mut field) => match field.push(byte) {
                Some(length) => Self::after_extra_length(flags, u16::from_le_bytes(length)),
                None => Part::ExtraLength(flags, field),
            },
            Part::Extra(flags, left) => Self::after_extra_length(flags, left.saturating_sub(1)),
            Part::Name(flags) if byte == 0 => Self::after_name(flags),
            Part::Comment(flags) if byte == 0 => Self::after_comment(flags),
            part @ (Part::Name(_) | Part::Comment(_) | Part::Data) => part,
            Part::HeaderCrc(mut field) => match field.push(byte) {
                // The lower half of the check sum.
                Some(crc) if u32::from(u16::from_le_bytes(crc)) == self.header.sum() & 0xffff => Part::Data,
                Some(_) => return Err(Fault::Corrupt),
                None => Part::HeaderCrc(field),
            },
            Part::Trailer(mut field) => match field.push(byte) {
                Some([a, b, c, d, e, f, g, h]) => {
                    let is_right = u32::from_le_bytes([a, b, c, d]) == self.data.sum()
                        && u32::from_le_bytes([e, f, g, h]) == self.data.amount();
                    if !is_right {
                        return Err(Fault::Corrupt);
                    }
                    self.next_member()
                }
                None => Part::Trailer(field),
            },
        };
        Ok(())
    }

    /// A file that is another one's rest is told from the first two bytes, as everything else by then.
    fn check_beginning(&self, field: &Field<FIXED_BYTES>) -> Result<(), Fault> {
        let fault = match self.members {
            Members::None => Fault::Corrupt,
            Members::Some => Fault::Trailing,
        };
        let [id1, id2, method, flags, ..] = field.bytes;
        match field.len {
            1 if id1 != 0x1f => Err(fault),
            2 if id2 != 0x8b => Err(fault),
            3 if method != 8 => Err(Fault::Corrupt),
            4 if flags & flag::RESERVED != 0 => Err(Fault::Corrupt),
            _ => Ok(()),
        }
    }

    fn next_member(&mut self) -> Part {
        self.members = Members::Some;
        self.inflater.restart_raw();
        self.data.reset();
        self.header.reset();
        Part::Fixed(Field::default())
    }

    fn after_fixed(flags: u8) -> Part {
        if flags & flag::EXTRA != 0 { Part::ExtraLength(flags, Field::default()) } else { Self::after_extra(flags) }
    }

    fn after_extra_length(flags: u8, left: u16) -> Part {
        if left > 0 { Part::Extra(flags, left) } else { Self::after_extra(flags) }
    }

    fn after_extra(flags: u8) -> Part {
        if flags & flag::NAME != 0 { Part::Name(flags) } else { Self::after_name(flags) }
    }

    fn after_name(flags: u8) -> Part {
        if flags & flag::COMMENT != 0 { Part::Comment(flags) } else { Self::after_comment(flags) }
    }

    fn after_comment(flags: u8) -> Part {
        if flags & flag::HEADER_CRC != 0 { Part::HeaderCrc(Field::default()) } else { Part::Data }
    }
}

/// A field of `N` bytes that may be cut.
#[derive(Debug, Clone, Copy)]
struct Field<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Field<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Field<N> {
    /// Adds a byte; returns all of them once they are there.
    fn push(&mut self, byte: u8) -> Option<[u8; N]> {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            *slot = byte;
            self.len += 1;
        }
        (self.len == N).then_some(self.bytes)
    }
}
