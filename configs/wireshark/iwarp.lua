-- Wireshark dissector of iWARP: MPA (revisions 0 to 2), DDP and RDMAP over TCP, and DDP over SCTP.
--
--   tshark -X lua_script:/usr/share/ddpd/wireshark/iwarp.lua -r FILE
--   wireshark -X lua_script:/usr/share/ddpd/wireshark/iwarp.lua FILE
--
-- Specifications: RFC 5044 (MPA), RFC 6581 (enhanced start-up), draft-culley-iwarp-mpa-03 (Start Key), RFC 5041 (DDP),
-- RFC 5040 and RFC 7306 (RDMAP), RFC 5043 (SCTP); docs/protocol.md for the advertisement and the last message of bare DDP.
--
-- TCP: a stream is recognised by its start-up frames, or without them by an FPDU with a correct CRC. Other streams need
-- "Decode As": tshark -d tcp.port==7471,iwarp. FPDUs that span segments need Wireshark's TCP preference "Allow subdissector
-- to reassemble TCP streams", and reordered segments "Reassemble out-of-order segments".
--
-- Positions are unwrapped TCP sequence numbers. The first pass decides where FPDUs start, and stores the decision per
-- frame ("plan"); later passes only display it.

local iwarp = Proto("iwarp", "iWARP")
local session_proto = Proto("iwarp_session", "iWARP: session control over SCTP")
local segment_proto = Proto("iwarp_segment", "iWARP: DDP segment over SCTP")

local MARKER_INTERVAL, MARKER_LEN, CRC_LEN = 512, 4, 4
local TAGGED_LEN, UNTAGGED_LEN, READ_REQUEST_LEN, ATOMIC_REQUEST_LEN = 14, 18, 28, 52
local KEYS = { ["MPA ID Req Frame"] = "request", ["MPA ID Rep Frame"] = "reply" }
local START_KEY = "MPA ident frame" -- and one byte of flags

-- CRC verdicts.
local BAD, GOOD, UNUSED, UNVERIFIED = 0, 1, 2, 3
local VERDICTS = { [BAD] = "bad", [GOOD] = "good", [UNUSED] = "not used", [UNVERIFIED] = "not verified" }

local OPCODES = {
    [0] = "RDMA Write", [1] = "RDMA Read Request", [2] = "RDMA Read Response", [3] = "Send", [4] = "Send with Invalidate",
    [5] = "Send with Solicited Event", [6] = "Send with Solicited Event and Invalidate", [7] = "Terminate",
    [8] = "Immediate Data", [9] = "Immediate Data with Solicited Event", [10] = "Atomic Request", [11] = "Atomic Response",
}
-- Queue of each untagged opcode; nil for tagged ones (RFC 5040 figure 4, RFC 7306 figure 2).
local QUEUES = { [1] = 1, [3] = 0, [4] = 0, [5] = 0, [6] = 0, [7] = 2, [8] = 0, [9] = 0, [10] = 1, [11] = 3 }
local QUEUE_NAMES = { [0] = "Send", [1] = "Read and Atomic Requests", [2] = "Terminate", [3] = "Atomic Responses" }
local ATOMICS = { [0] = "FetchAdd", [2] = "CmpSwap" }
local FUNCTIONS = {
    [1] = "Initiate", [2] = "Accept", [3] = "Reject", [4] = "Terminate",
    [5] = "Enhanced Initiate", [6] = "Enhanced Accept", [7] = "Enhanced Reject",
}
local LAYERS = { [0] = "RDMAP", [1] = "DDP", [2] = "LLP (MPA)" }
-- Error types and codes by layer * 16 + type (RFC 5040 figure 9, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8).
local ERROR_TYPES = {
    [0x00] = "local catastrophic error", [0x01] = "remote protection error", [0x02] = "remote operation error",
    [0x10] = "local catastrophic error", [0x11] = "tagged buffer error", [0x12] = "untagged buffer error",
    [0x13] = "reserved for the LLP", [0x20] = "MPA error",
}
local ERRORS = {
    [0x01] = { [0] = "invalid STag", "base or bounds violation", "access rights violation",
        "STag not associated with RDMAP stream", "TO wrap", [9] = "STag cannot be invalidated", [255] = "unspecified error" },
    [0x02] = { [5] = "invalid RDMAP version", [6] = "unexpected opcode",
        [7] = "catastrophic error, localized to RDMAP stream", [8] = "catastrophic error, global",
        [9] = "STag cannot be invalidated", [255] = "unspecified error" },
    [0x10] = { [0] = "local catastrophic error" },
    [0x11] = { [0] = "invalid STag", "base or bounds violation", "STag not associated with DDP stream", "TO wrap",
        "invalid DDP version" },
    [0x12] = { "invalid queue number", "invalid MSN: no buffer available", "invalid MSN: range is not valid", "invalid MO",
        "DDP message too long for available buffer", "invalid DDP version" },
    [0x20] = { "TCP connection closed, terminated or lost", "CRC error", "marker and ULPDU_Length mismatch",
        "invalid MPA Request or Reply frame", "local catastrophic error", "insufficient IRD resources",
        "no matching RTR option" },
}

-- Fields ------------------------------------------------------------------------------------------------------------

local field = {}
local function add_field(key, kind, title, ...)
    field[key] = ProtoField[kind]("iwarp." .. key, title, ...)
end
local function add_flag(key, title, mask)
    add_field(key, "bool", title, 8, nil, mask)
end

add_field("mpa.start", "string", "Start-up frame")
add_field("mpa.key", "string", "Key")
add_flag("mpa.m", "M: requires markers from the peer", 0x80)
add_flag("mpa.c", "C: requires CRCs", 0x40)
add_flag("mpa.r", "R: rejected", 0x20)
add_flag("mpa.s", "S: enhanced start-up", 0x10)
add_field("mpa.reserved", "uint8", "Reserved", base.HEX)
add_field("mpa.revision", "uint8", "Revision", base.DEC)
add_field("mpa.pd_length", "uint16", "PD_Length", base.DEC)
add_field("mpa.private_data", "bytes", "Private data")
add_flag("mpa.a", "A: peer-to-peer", 0x80)
add_flag("mpa.b", "B: zero-length Send as ready-to-receive message", 0x40)
add_field("mpa.ird", "uint16", "IRD", base.DEC, nil, 0x3fff)
add_flag("mpa.c_rtr", "C: zero-length RDMA Write as ready-to-receive message", 0x80)
add_flag("mpa.d_rtr", "D: zero-length RDMA Read as ready-to-receive message", 0x40)
add_field("mpa.ord", "uint16", "ORD", base.DEC, nil, 0x3fff)
add_field("mpa.ulpdu_length", "uint16", "ULPDU_Length", base.DEC)
add_field("mpa.pad", "bytes", "Pad")
add_field("mpa.crc", "uint32", "CRC", base.HEX)
add_field("mpa.crc.status", "uint8", "CRC verdict", base.DEC, VERDICTS)
add_field("mpa.marker", "bytes", "Marker")
add_field("mpa.marker.reserved", "uint16", "Reserved", base.HEX)
add_field("mpa.marker.fpduptr", "uint16", "FPDUPTR", base.DEC)
add_field("mpa.marker.status", "uint8", "Marker verdict", base.DEC, { [0] = "bad", [1] = "good" })
add_field("mpa.undecoded", "bytes", "Undecoded bytes")

add_field("advert.version", "uint8", "Version", base.DEC)
add_flag("advert.bare_ddp", "Stream is bare DDP", 0x01)
add_flag("advert.rdmap", "Stream is RDMAP", 0x02)
add_field("advert.count", "uint16", "Regions", base.DEC)
add_field("advert.stag", "uint32", "STag", base.HEX)
add_field("advert.access", "uint8", "Access (1 write, 2 read, 4 atomics, 8 in use)", base.HEX)
add_field("advert.to", "uint64", "Base TO", base.HEX)
add_field("advert.length", "uint64", "Length", base.DEC)
add_field("advert.name", "string", "Name")

add_flag("ddp.t", "T: tagged", 0x80)
add_flag("ddp.l", "L: last", 0x40)
add_field("ddp.reserved", "uint8", "Reserved", base.HEX, nil, 0x3c)
add_field("ddp.dv", "uint8", "DDP version", base.DEC, nil, 0x03)
add_field("ddp.rsvd_ulp", "bytes", "RsvdULP")
add_field("ddp.stag", "uint32", "STag", base.HEX)
add_field("ddp.to", "uint64", "TO", base.HEX)
add_field("ddp.qn", "uint32", "QN", base.DEC, QUEUE_NAMES)
add_field("ddp.msn", "uint32", "MSN", base.DEC)
add_field("ddp.mo", "uint32", "MO", base.DEC)
add_field("ddp.payload", "bytes", "Payload")
add_field("ddp.payload_length", "uint32", "Payload length", base.DEC)

add_field("rdmap.rv", "uint8", "RDMAP version", base.DEC, nil, 0xc0)
add_field("rdmap.reserved", "uint8", "Reserved", base.HEX, nil, 0x30)
add_field("rdmap.opcode", "uint8", "Opcode", base.DEC, OPCODES, 0x0f)
add_field("rdmap.invalidate_stag", "uint32", "Invalidate STag", base.HEX)
add_field("rdmap.sink_stag", "uint32", "Sink STag", base.HEX)
add_field("rdmap.sink_to", "uint64", "Sink TO", base.HEX)
add_field("rdmap.read_size", "uint32", "Read size", base.DEC)
add_field("rdmap.source_stag", "uint32", "Source STag", base.HEX)
add_field("rdmap.source_to", "uint64", "Source TO", base.HEX)
add_field("rdmap.atomic.opcode", "uint32", "Atomic opcode", base.DEC, ATOMICS, 0x0f)
add_field("rdmap.atomic.id", "uint32", "Request identifier", base.HEX)
add_field("rdmap.atomic.stag", "uint32", "Remote STag", base.HEX)
add_field("rdmap.atomic.to", "uint64", "Remote TO", base.HEX)
add_field("rdmap.atomic.data", "uint64", "Add or swap data", base.HEX)
add_field("rdmap.atomic.mask", "uint64", "Add or swap mask", base.HEX)
add_field("rdmap.atomic.compare", "uint64", "Compare data", base.HEX)
add_field("rdmap.atomic.compare_mask", "uint64", "Compare mask", base.HEX)
add_field("rdmap.atomic.original", "uint64", "Original value", base.HEX)
add_field("rdmap.immediate", "uint64", "Immediate data", base.HEX)

add_field("term.layer", "uint8", "Layer", base.DEC, LAYERS)
add_field("term.type", "uint8", "Error type", base.DEC)
add_field("term.code", "uint8", "Error code", base.HEX)
add_field("term.error", "string", "Error")
add_field("term.m", "bool", "M: segment length is valid")
add_field("term.d", "bool", "D: DDP header is included")
add_field("term.r", "bool", "R: RDMAP header is included")
add_field("term.siw_layout", "bool", "Layout of Linux siw (nibbles and flags reversed)")
add_field("term.version", "uint8", "Version of the last message", base.DEC)
add_field("term.segment_length", "uint32", "Length of the segment in error", base.DEC)

add_field("sctp.ddp_ssn", "uint16", "DDP-SSN", base.DEC)
add_field("sctp.function", "uint16", "Function", base.DEC, FUNCTIONS)

local fields = {}
for _, entry in pairs(field) do fields[#fields + 1] = entry end
iwarp.fields = fields

local expert = {
    crc = ProtoExpert.new("iwarp.crc_bad", "CRC is bad", expert.group.CHECKSUM, expert.severity.ERROR),
    marker = ProtoExpert.new("iwarp.marker_bad", "Marker is bad", expert.group.CHECKSUM, expert.severity.ERROR),
    malformed = ProtoExpert.new("iwarp.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR),
    protocol = ProtoExpert.new("iwarp.protocol", "Protocol violation", expert.group.PROTOCOL, expert.severity.WARN),
    startup = ProtoExpert.new("iwarp.no_startup", "Start-up not captured", expert.group.SEQUENCE, expert.severity.NOTE),
    gap = ProtoExpert.new("iwarp.gap", "Earlier bytes are missing", expert.group.SEQUENCE, expert.severity.WARN),
    partial = ProtoExpert.new("iwarp.partial", "Incomplete FPDU", expert.group.UNDECODED, expert.severity.NOTE),
    error = ProtoExpert.new("iwarp.error", "Error reported by the peer", expert.group.RESPONSE_CODE, expert.severity.WARN),
    siw = ProtoExpert.new("iwarp.siw_terminate", "Terminate in the layout of Linux siw", expert.group.PROTOCOL, expert.severity.NOTE),
}
local experts = {}
for _, entry in pairs(expert) do experts[#experts + 1] = entry end
iwarp.experts = experts

local DETECT, YES, NO = 0, 1, 2
iwarp.prefs.markers = Pref.enum("Markers without captured start-up", DETECT, "Markers of streams whose start-up is not captured",
    { { 1, "detect", DETECT }, { 2, "markers", YES }, { 3, "no markers", NO } }, false)
iwarp.prefs.crc = Pref.enum("CRC without captured start-up", DETECT, "CRC of streams whose start-up is not captured",
    { { 1, "detect", DETECT }, { 2, "used", YES }, { 3, "not used", NO } }, false)
local RDMAP, BARE = 1, 2
iwarp.prefs.upper = Pref.enum("Protocol above DDP", DETECT, "RDMAP or bare DDP, which has no header of its own",
    { { 1, "detect", DETECT }, { 2, "RDMAP", RDMAP }, { 3, "bare DDP", BARE } }, false)
iwarp.prefs.verify = Pref.bool("Verify CRCs", true, "Compute the CRC of each FPDU")

-- CRC32c ------------------------------------------------------------------------------------------------------------

local bxor, band, shift_right
if bit32 then
    bxor, band, shift_right = bit32.bxor, bit32.band, bit32.rshift
else -- Lua 5.3 and later: operators, which Lua 5.2 cannot parse
    bxor, band, shift_right = load([[
        return function(a, b, c, d) return a ~ b ~ (c or 0) ~ (d or 0) end,
            function(a, b) return a & b end, function(a, n) return a >> n end]])()
end

-- Tables for four bytes at once: crc_table[n][byte] is the CRC of the byte and n zero bytes after it.
local crc_table = { [0] = {}, {}, {}, {} }
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        crc = band(crc, 1) == 1 and bxor(shift_right(crc, 1), 0x82f63b78) or shift_right(crc, 1)
    end
    crc_table[0][byte] = crc
end
for zeros = 1, 3 do
    for byte = 0, 255 do
        local crc = crc_table[zeros - 1][byte]
        crc_table[zeros][byte] = bxor(crc_table[0][crc % 256], shift_right(crc, 8))
    end
end

local function crc32c(bytes)
    local crc, at = 0xffffffff, 1
    local t0, t1, t2, t3 = crc_table[0], crc_table[1], crc_table[2], crc_table[3]
    while at + 3 <= #bytes do
        local a, b, c, d = bytes:byte(at, at + 3)
        local word = bxor(crc, a + b * 0x100 + c * 0x10000 + d * 0x1000000)
        a = word % 256
        word = (word - a) / 256
        b = word % 256
        word = (word - b) / 256
        c = word % 256
        crc = bxor(t3[a], t2[b], t1[c], t0[(word - c) / 256])
        at = at + 4
    end
    for last = at, #bytes do
        crc = bxor(t0[bxor(crc, bytes:byte(last)) % 256], shift_right(crc, 8))
    end
    return bxor(crc, 0xffffffff)
end

-- State of streams --------------------------------------------------------------------------------------------------

local sctp_assoc, sctp_sid = Field.new("sctp.assoc_index"), Field.new("sctp.data_sid")

-- Current TCP stream of each pair of endpoints, stream of each frame, and upper protocol of SCTP streams. All are emptied
-- when a capture is opened.
local current, stream_of, sctp_upper = {}, {}, {}
-- TCP header of the segment that is being dissected, and Info column of its frame.
local header, column = nil, {}
-- TCP's preference "Allow subdissector to reassemble TCP streams".
local reassembly = true

function iwarp.init()
    current, stream_of, sctp_upper, header, column = {}, {}, {}, nil, {}
    reassembly = get_preference("tcp.desegment_tcp_streams") ~= false
end

-- Field extractors have no values in the first of two passes of tshark. The header is therefore read in front of TCP's
-- dissector.
local tap = Proto("iwarp_tcp", "iWARP: TCP header")
local tcp = DissectorTable.get("ip.proto"):get_dissector(6)
local SYN, ACK = 0x02, 0x10
local SEQUENCE_SPACE = 4294967296

local function endpoint_keys(pinfo, source_port, destination_port)
    local source, destination = tostring(pinfo.src) .. " " .. source_port, tostring(pinfo.dst) .. " " .. destination_port
    return source .. " " .. destination, destination .. " " .. source
end

function tap.dissector(tvb, pinfo, tree)
    local outer = header
    header = nil
    if tvb:len() >= 20 then
        header = {
            source = tvb:range(0, 2):uint(),
            destination = tvb:range(2, 2):uint(),
            seq = tvb:range(4, 4):uint(),
            payload = tvb:offset() + math.floor(tvb:range(12, 1):uint() / 16) * 4,
        }
        local flags = tvb:range(13, 1):uint()
        if band(flags, SYN) ~= 0 and band(flags, ACK) == 0 and not pinfo.visited then
            local forward, backward = endpoint_keys(pinfo, header.source, header.destination)
            if not current[forward] or current[forward].syn ~= header.seq then
                local stream = { syn = header.seq }
                current[forward], current[backward] = stream, stream
            end
        end
    end
    -- An exception of TCP's dissector, such as a reassembly error, is displayed by `call` before it raises an error.
    local done, used = pcall(tcp.call, tcp, tvb, pinfo, tree)
    header = outer
    return done and used or tvb:len()
end
DissectorTable.get("ip.proto"):add(6, tap)

-- Returns the stream of the segment and its two directions. A direction has:
--   startup   start-up frame: kind, m, c, revision, reject
--   origin    position after the start-up frame
--   context   how to read FPDUs: mark (position of a marker, nil: no markers), crc (true, false, nil: unknown),
--             assumed (true: start-up not captured)
--   boundary  set of positions at which an FPDU starts
--   next      position after the bytes seen so far
--   pending   set of positions from which reassembly was requested
--   plans     plans by frame and call
--   positions position of each frame's payload
--   starts    positions of the reassembled bytes of a frame
local function directions_of(pinfo)
    local forward, backward = endpoint_keys(pinfo, header.source, header.destination)
    local frame = pinfo.number .. " " .. forward
    local stream = stream_of[frame] or current[forward] or {}
    stream_of[frame] = stream
    if not current[forward] then current[forward], current[backward] = stream, stream end
    for _, key in ipairs({ forward, backward }) do
        if not stream[key] then
            stream[key] = { boundary = {}, pending = {}, plans = {}, positions = {}, starts = {} }
        end
    end
    return stream, stream[forward], stream[backward]
end

-- Returns the unwrapped position of the segment's first payload byte.
local function segment_position(pinfo, own)
    local position = own.positions[pinfo.number]
    if position then return position end
    position = header.seq
    if own.highest then
        local ahead = (position - own.highest) % SEQUENCE_SPACE
        position = own.highest + (ahead < SEQUENCE_SPACE / 2 and ahead or ahead - SEQUENCE_SPACE)
    end
    own.highest = math.max(own.highest or position, position)
    own.positions[pinfo.number] = position
    return position
end

-- MPA: layout -------------------------------------------------------------------------------------------------------

-- Bytes of one call of the dissector, addressed by position.
local Window = {}
Window.__index = Window
function Window:has(position, len) return position >= self.start and position + len <= self.stop end
function Window:u8(position) return self.tvb:range(position - self.start, 1):uint() end
function Window:u16(position) return self.tvb:range(position - self.start, 2):uint() end
function Window:le32(position) return self.tvb:range(position - self.start, 4):le_uint() end
function Window:raw(position, len) return self.tvb:raw(position - self.start, len) end
function Window:range(position, len) return self.tvb:range(position - self.start, len) end

local function marker_due(position, mark)
    return mark ~= nil and (position - mark) % MARKER_INTERVAL == 0
end

-- Returns the position of ULPDU_Length of the FPDU at `start` (RFC 5044 §4.3).
local function header_position(start, mark)
    return marker_due(start, mark) and start + MARKER_LEN or start
end

-- Returns the layout of an FPDU: position of its header and CRC, its end, its markers, and runs of bytes between them.
local function layout(start, ulpdu, mark)
    local at, markers, runs = start, {}, {}
    local function pass_marker()
        if marker_due(at, mark) then
            markers[#markers + 1] = at
            at = at + MARKER_LEN
        end
    end
    local left = 2 + ulpdu
    left = left + -left % 4
    while left > 0 do
        pass_marker()
        local run = left
        if mark then run = math.min(run, MARKER_INTERVAL - (at - mark) % MARKER_INTERVAL) end
        runs[#runs + 1] = { at, run }
        at, left = at + run, left - run
    end
    pass_marker() -- RFC 5044 §4.4: a marker between pad and CRC belongs to this FPDU.
    return { start = start, header = header_position(start, mark), crc = at, stop = at + CRC_LEN, markers = markers, runs = runs }
end

local function crc_verdict(window, shape, context)
    if context.crc == false then return UNUSED end
    if not iwarp.prefs.verify then return UNVERIFIED end
    if not window:has(shape.start, shape.stop - shape.start) then return UNVERIFIED end
    local field_value = window:le32(shape.crc)
    if crc32c(window:raw(shape.start, shape.crc - shape.start)) == field_value then return GOOD end
    if context.crc == nil then return field_value == 0 and UNUSED or UNVERIFIED end
    return BAD
end

-- True if the bytes at `header` can be ULPDU_Length and the control bytes of a DDP segment.
local function plausible(window, header)
    if not window:has(header, 4) then return false end
    local ulpdu, control, ulp = window:u16(header), window:u8(header + 2), window:u8(header + 3)
    local tagged, version = control >= 0x80, control % 4
    if ulpdu < (tagged and TAGGED_LEN or UNTAGGED_LEN) or band(control, 0x3c) ~= 0 or version > 1 then return false end
    if ulp == 0 then return true end -- bare DDP
    local opcode = ulp % 16
    if band(ulp, 0x30) ~= 0 or not OPCODES[opcode] or math.floor(ulp / 64) > 1 then return false end
    return tagged == (QUEUES[opcode] == nil)
end

-- MPA: location of FPDUs --------------------------------------------------------------------------------------------

-- Detects how to read an FPDU at `at` without a start-up. Returns its context, and whether its CRC confirms it.
-- `markers`: YES, NO or DETECT, by default the preference.
local function detect(window, at, markers)
    local weak
    local function try(mark)
        local header = header_position(at, mark)
        if not plausible(window, header) then return nil end
        local shape = layout(at, window:u16(header), mark)
        local context = { mark = mark, assumed = true }
        if iwarp.prefs.crc ~= DETECT then context.crc = iwarp.prefs.crc == YES end
        if shape.stop > window.stop then
            weak = weak or context
        elseif crc32c(window:raw(at, shape.crc - at)) == window:le32(shape.crc) then
            if iwarp.prefs.crc == DETECT then context.crc = true end
            return context
        elseif window:le32(shape.crc) == 0 or context.crc ~= nil then
            if context.crc == nil then context.crc = false end
            weak = weak or context
        end
    end
    markers = markers or iwarp.prefs.markers
    if markers ~= YES then
        local found = try(nil)
        if found then return found, true end
    end
    local unmarked = weak
    weak = nil
    if markers ~= NO then
        for ahead = 0, MARKER_INTERVAL - 4, 4 do
            if not window:has(at + ahead, MARKER_LEN) then break end
            if window:u16(at + ahead) == 0 and window:u16(at + ahead + 2) == ahead then
                local found = try(at + ahead)
                if found then return found, true end
            end
        end
    end
    return weak or unmarked, false
end

-- Returns the context of FPDUs in the direction `own`; nil if it has to be detected (RFC 5044 §7.1.1: M of one frame
-- concerns the other direction, C both).
local function context_of(own, other, window, at)
    if own.context or not own.startup then return own.context end
    local context = {}
    if other.startup then
        context.mark = other.startup.m and own.origin or nil
        context.crc = own.startup.c or other.startup.c
    else
        context.assumed = true
        if iwarp.prefs.markers ~= DETECT then
            context.mark = iwarp.prefs.markers == YES and own.origin or nil
        elseif window:has(at, 4) and at == own.origin and window:u16(at) == 0 then
            context.mark = own.origin -- A stream with markers starts with one, others with ULPDU_Length.
        end
        if iwarp.prefs.crc ~= DETECT then context.crc = iwarp.prefs.crc == YES end
    end
    own.context = context
    return context
end

-- Returns the position of the first FPDU at or after `at`: a known boundary, or the target of a marker (RFC 5044 §4.3).
-- Returns nil if the window has none.
local function locate(own, window, at, mark)
    local known, marked
    for position = at, window.stop - 1 do
        if own.boundary[position] then known = position break end
    end
    if mark then
        local position = at + (mark - at) % MARKER_INTERVAL
        while not marked and window:has(position, MARKER_LEN) do
            local pointer = window:u16(position + 2)
            local target = position - (pointer - pointer % 4)
            if target > at and marker_due(target - MARKER_LEN, mark) then target = target - MARKER_LEN end
            if target >= at then marked = target end
            position = position + MARKER_INTERVAL
        end
    end
    if known and marked then return math.min(known, marked) end
    return known or marked
end

-- MPA: plans --------------------------------------------------------------------------------------------------------

-- Plans a start-up frame at `at`. Returns its item, an item with only `need` (bytes to request from TCP's reassembly), or nil
-- if no start-up frame begins at `at`.
local function plan_startup(stream, own, other, window, at)
    if own.startup or own.context then return nil end
    local left = window.stop - at
    local first = window:raw(at, math.min(left, 16))
    local kind = KEYS[first] or (left >= 16 and first:sub(1, 15) == START_KEY and "start key")
    if not kind then
        if left >= 16 then return nil end
        for key in pairs(KEYS) do
            if key:sub(1, left) == first then return { need = DESEGMENT_ONE_MORE_SEGMENT } end
        end
        return START_KEY:sub(1, left) == first and { need = DESEGMENT_ONE_MORE_SEGMENT } or nil
    end
    local len = 16
    if kind ~= "start key" then
        if left < 20 then return { need = DESEGMENT_ONE_MORE_SEGMENT } end
        len = 20 + window:u16(at + 18)
    end
    if left < len and window.whole then return { need = len - left } end
    local flags = window:u8(at + (kind == "start key" and 15 or 16))
    own.startup = {
        kind = kind,
        m = band(flags, 0x80) ~= 0,
        c = band(flags, 0x40) ~= 0,
        reject = kind == "reply" and band(flags, 0x20) ~= 0,
    }
    own.origin = at + len
    if own.startup.reject then own.closed, other.closed = true, true end
    own.boundary[own.origin] = true
    own.next = own.origin
    if kind ~= "start key" and len >= 28 and window:has(at, 28) then
        for _, skip in ipairs({ 20, 24 }) do -- without and with enhanced data
            if window:has(at + skip, 8) and window:raw(at + skip, 4) == "DDPA" then
                local stated = window:u8(at + skip + 5) % 4
                stream.upper = stated == 1 and BARE or stated == 2 and RDMAP or stream.upper
            end
        end
    elseif kind == "start key" then
        stream.draft = true
    end
    return { kind = "startup", form = kind, start = at, stop = own.origin }
end

-- Plans the FPDU at `at`, a boundary.
local function plan_fpdu(own, window, at, context)
    local header = header_position(at, context.mark)
    if not window:has(header, 2) then
        if window.whole then return { need = DESEGMENT_ONE_MORE_SEGMENT } end
        return { kind = "undecoded", start = at, stop = window.stop, text = "captured bytes end in the FPDU's header" }
    end
    local shape = layout(at, window:u16(header), context.mark)
    if shape.stop > window.stop and window.whole then return { need = shape.stop - window.stop } end
    local item = { kind = "fpdu", start = at, stop = shape.stop, context = context }
    item.verdict = crc_verdict(window, shape, context)
    if context.assumed and context.crc == nil and item.verdict == GOOD then context.crc = true end
    own.boundary[shape.stop] = true
    return item
end

-- Returns whether the CRC of an FPDU at `at` is correct, and the CRC field; nil if the FPDU is implausible or incomplete.
local function checked_crc(window, at, context)
    local start = header_position(at, context.mark)
    if not plausible(window, start) then return nil end
    local shape = layout(at, window:u16(start), context.mark)
    if shape.stop > window.stop then return nil end
    local written = window:le32(shape.crc)
    return crc32c(window:raw(at, shape.crc - at)) == written, written
end

-- True if an FPDU at `at` shows that the assumed context is wrong.
local function doubtful(window, at, context)
    local start = header_position(at, context.mark)
    if not window:has(start, 4) then return false end
    if not plausible(window, start) then return true end
    local correct, written = checked_crc(window, at, context)
    if context.crc == false then return correct ~= nil and written ~= 0 end
    return correct == false
end

-- Plans the next item at `at`.
local function plan_item(stream, own, other, window, at)
    local startup = plan_startup(stream, own, other, window, at)
    if startup then return startup end
    if own.closed then return { kind = "undecoded", start = at, stop = window.stop, text = "the connection was rejected" } end
    local context = context_of(own, other, window, at)
    if context and own.boundary[at] then
        if context.assumed and doubtful(window, at, context) then
            local better, sure = detect(window, at)
            if better and (sure or context.crc ~= true) then
                context, own.context = better, better
            elseif not plausible(window, header_position(at, context.mark)) then
                if not own.startup then own.context = nil end
                return { kind = "undecoded", start = at, stop = window.stop, text = "no FPDU found", unknown = true }
            end
        end
        return plan_fpdu(own, window, at, context)
    end
    if context then
        local found = locate(own, window, at, context.mark)
        if not found then
            -- Senders that align FPDUs start a segment with an FPDU: confirmed by its CRC, or else by its header.
            local unchecked = context.crc == false and not context.mark and at > own.next
            if checked_crc(window, at, context) or unchecked and plausible(window, at) then
                found = at
            elseif context.assumed then
                local guess, sure = detect(window, at)
                if sure then context, own.context, found = guess, guess, at end
            end
        end
        if found == at then
            own.boundary[at] = true
            local item = plan_fpdu(own, window, at, context)
            item.gap = true
            return item
        end
        local text = at > own.next and "earlier bytes are missing" or "part of an FPDU"
        return { kind = "undecoded", start = at, stop = found or window.stop, text = text, gap = true }
    end
    local markers = other.startup and (other.startup.m and YES or NO)
    local found = detect(window, at, markers)
    if not found then
        return { kind = "undecoded", start = at, stop = window.stop, text = "start-up not captured, no FPDU found", unknown = true }
    end
    if other.startup and other.startup.c then found.crc = true end
    own.context = found
    own.boundary[at] = true
    return plan_fpdu(own, window, at, found)
end

-- Plans a call: items from the first byte to the last, and what to request from TCP's reassembly.
local function plan_call(stream, own, other, window)
    local plan, at = {}, window.start
    own.next = own.next or at
    while at < window.stop do
        local item = plan_item(stream, own, other, window, at)
        if item.need then
            plan.offset, plan.need = at - window.start, item.need
            own.pending[at] = true
            break
        end
        plan[#plan + 1] = item
        at = math.max(item.stop, at + 1)
    end
    own.next = math.max(own.next, at)
    plan.upper, plan.draft = stream.upper, stream.draft
    return plan
end

-- Display: DDP and RDMAP --------------------------------------------------------------------------------------------

local function u64(range) return "0x" .. tostring(range:bytes()):lower() end

-- Adds a list of fields of the given lengths from `at`; returns the offset after them, or nil if bytes are missing.
local function add_list(tree, bytes, at, list)
    for index = 1, #list, 2 do
        local key, len = list[index], list[index + 1]
        if at + len > bytes:len() then
            tree:add_proto_expert_info(expert.malformed, "Ends within " .. key .. " (" .. bytes:len() - at .. " of " .. len .. " bytes)")
            return nil
        end
        tree:add(field[key], bytes:range(at, len))
        at = at + len
    end
    return at
end

local READ_REQUEST = { "rdmap.sink_stag", 4, "rdmap.sink_to", 8, "rdmap.read_size", 4, "rdmap.source_stag", 4, "rdmap.source_to", 8 }
local ATOMIC_REQUEST = {
    "rdmap.atomic.opcode", 4, "rdmap.atomic.id", 4, "rdmap.atomic.stag", 4, "rdmap.atomic.to", 8, "rdmap.atomic.data", 8,
    "rdmap.atomic.mask", 8, "rdmap.atomic.compare", 8, "rdmap.atomic.compare_mask", 8,
}
local ATOMIC_RESPONSE = { "rdmap.atomic.id", 4, "rdmap.atomic.original", 8 }
local IMMEDIATE = { "rdmap.immediate", 8 }

local function error_text(layer, kind, code)
    local at = layer * 16 + kind
    local known = ERRORS[at] and ERRORS[at][code]
    if at == 0 then known = ERROR_TYPES[0] end
    local name = (LAYERS[layer] or "layer " .. layer) .. ", " .. (ERROR_TYPES[at] or "type " .. kind)
    return name .. ", " .. (known or string.format("code 0x%02x", code)), known ~= nil
end

local add_ddp_header

-- Adds the header that a Terminate or a last message quotes; returns the offset after it, or nil.
local function add_quoted_header(tree, bytes, at, plan, len)
    if at >= bytes:len() then
        tree:add_proto_expert_info(expert.malformed, "The quoted DDP header is missing")
        return nil
    end
    local tagged = bytes:range(at, 1):uint() >= 0x80
    len = math.min(len or (tagged and TAGGED_LEN or UNTAGGED_LEN), bytes:len() - at)
    local quoted = bytes:range(at, len):tvb()
    local item = tree:add(iwarp, bytes:range(at, len), "Quoted DDP header")
    if not add_ddp_header(item, quoted, plan, true) then return nil end
    return at + len
end

-- Adds a Terminate header (RFC 5040 §4.8). Linux siw on little-endian machines swaps the nibbles of the first byte, and
-- has M, D and R in the lowest bits of the third.
local function add_terminate(tree, bytes, plan)
    if bytes:len() < 4 then
        tree:add_proto_expert_info(expert.malformed, "Terminate of " .. bytes:len() .. " bytes, at least 4")
        return "Terminate (malformed)"
    end
    local first, code, flags = bytes:range(0, 1):uint(), bytes:range(1, 1):uint(), bytes:range(2, 1):uint()
    local layer, kind = math.floor(first / 16), first % 16
    local m, d, r = band(flags, 0x80) ~= 0, band(flags, 0x40) ~= 0, band(flags, 0x20) ~= 0
    local text, known = error_text(layer, kind, code)
    local siw = false
    if not (m or d or r) then
        local swapped, swapped_known = error_text(kind, layer, code)
        siw = flags % 8 ~= 0 or (swapped_known and not known)
        if siw then
            layer, kind, text = kind, layer, swapped
            m, d, r = band(flags, 1) ~= 0, band(flags, 2) ~= 0, band(flags, 4) ~= 0
        end
    end
    tree:add(field["term.layer"], bytes:range(0, 1), layer)
    tree:add(field["term.type"], bytes:range(0, 1), kind)
    tree:add(field["term.code"], bytes:range(1, 1))
    local shown = tree:add(field["term.error"], bytes:range(0, 2), text)
    shown:add_proto_expert_info(expert.error, text)
    tree:add(field["term.m"], bytes:range(2, 1), m)
    tree:add(field["term.d"], bytes:range(2, 1), d)
    tree:add(field["term.r"], bytes:range(2, 1), r)
    if siw then
        tree:add(field["term.siw_layout"], bytes:range(0, 3), true):add_proto_expert_info(expert.siw)
    end
    local at = 4
    if m or d then at = add_list(tree, bytes, at, { "term.segment_length", 2 }) end
    if at and d then at = add_quoted_header(tree, bytes, at, plan) end
    if at and r then
        add_list(tree:add(iwarp, bytes:range(math.min(at, bytes:len())), "Quoted Read Request"), bytes, at, READ_REQUEST)
    end
    return "Terminate: " .. text
end

-- Adds the last message of bare DDP (docs/protocol.md, section 5).
local function add_last_message(tree, bytes, plan)
    local first = bytes:range(1, 1):uint()
    local layer, kind, code = math.floor(first / 16), first % 16, bytes:range(2, 1):uint()
    local text = error_text(layer, kind, code)
    tree:add(field["term.version"], bytes:range(0, 1))
    tree:add(field["term.layer"], bytes:range(1, 1), layer)
    tree:add(field["term.type"], bytes:range(1, 1), kind)
    tree:add(field["term.code"], bytes:range(2, 1))
    tree:add(field["term.error"], bytes:range(1, 2), text):add_proto_expert_info(expert.error, text)
    tree:add(field["term.segment_length"], bytes:range(4, 4))
    local quoted = bytes:range(3, 1):uint()
    if quoted > 0 then add_quoted_header(tree, bytes, 8, plan, quoted) end
    return "Last message: " .. text
end

-- Returns RDMAP or BARE for a segment.
local function upper_protocol(plan, ulp, version)
    if iwarp.prefs.upper ~= DETECT then return iwarp.prefs.upper end
    if plan.upper then return plan.upper end
    -- RDMAP has version 1; version 0 occurs with the first MPA draft.
    if ulp >= 0x40 or plan.draft and version == 0 then return RDMAP end
    return ulp == 0 and BARE or RDMAP
end

-- Adds a DDP header (RFC 5041 §4) and RDMAP's control field in it. Returns a description of the segment, or nil if it
-- ends within the header. `quoted`: the header is that of a Terminate.
function add_ddp_header(tree, bytes, plan, quoted)
    if bytes:len() < 2 then
        tree:add_proto_expert_info(expert.malformed, "ULPDU of " .. bytes:len() .. " bytes ends within the DDP header")
        return nil
    end
    local control, ulp = bytes:range(0, 1):uint(), bytes:range(1, 1):uint()
    local tagged, version, opcode = control >= 0x80, control % 4, ulp % 16
    local header_len = tagged and TAGGED_LEN or UNTAGGED_LEN
    local upper = upper_protocol(plan, ulp, version)
    local ddp = tree:add(iwarp, bytes:range(0, math.min(header_len, bytes:len())), "DDP, " .. (tagged and "tagged" or "untagged"))
    for _, key in ipairs({ "ddp.t", "ddp.l", "ddp.reserved", "ddp.dv" }) do ddp:add(field[key], bytes:range(0, 1)) end
    if upper == RDMAP then
        local rdmap = ddp:add(iwarp, bytes:range(1, 1), "RDMAP: " .. (OPCODES[opcode] or "opcode " .. opcode))
        for _, key in ipairs({ "rdmap.rv", "rdmap.reserved", "rdmap.opcode" }) do rdmap:add(field[key], bytes:range(1, 1)) end
        if not OPCODES[opcode] then
            rdmap:add_proto_expert_info(expert.protocol, "Unknown opcode " .. opcode)
        elseif tagged ~= (QUEUES[opcode] == nil) then
            rdmap:add_proto_expert_info(expert.protocol, OPCODES[opcode] .. " is " .. (tagged and "un" or "") .. "tagged by its specification")
        end
    else
        ddp:add(field["ddp.rsvd_ulp"], bytes:range(1, math.min(tagged and 1 or 5, bytes:len() - 1)))
    end
    local segment = { tagged = tagged, last = band(control, 0x40) ~= 0, upper = upper, opcode = opcode, header_len = header_len }
    if tagged then
        if not add_list(ddp, bytes, 2, { "ddp.stag", 4, "ddp.to", 8 }) then return nil end
        segment.place = "STag 0x" .. tostring(bytes:range(2, 4):bytes()):lower() .. " TO " .. u64(bytes:range(6, 8))
        return segment
    end
    if upper == RDMAP and not add_list(ddp, bytes, 2, { "rdmap.invalidate_stag", 4 }) then return nil end
    if not add_list(ddp, bytes, 6, { "ddp.qn", 4, "ddp.msn", 4, "ddp.mo", 4 }) then return nil end
    segment.queue = bytes:range(6, 4):uint()
    segment.place = "QN " .. segment.queue .. " MSN " .. bytes:range(10, 4):uint() .. " MO " .. bytes:range(14, 4):uint()
    segment.first = bytes:range(14, 4):uint() == 0
    if upper == RDMAP and QUEUES[opcode] and QUEUES[opcode] ~= segment.queue and not quoted then
        ddp:add_proto_expert_info(expert.protocol, OPCODES[opcode] .. " belongs to queue " .. QUEUES[opcode])
    end
    return segment
end

-- Adds a DDP segment; returns its description for the Info column.
local function add_segment(tree, bytes, plan)
    local segment = add_ddp_header(tree, bytes, plan, false)
    if not segment then return "DDP segment (malformed)" end
    local len = bytes:len() - segment.header_len
    tree:add(field["ddp.payload_length"], bytes:range(), len):set_generated()
    local name = segment.upper == RDMAP and (OPCODES[segment.opcode] or "opcode " .. segment.opcode)
        or segment.tagged and "DDP tagged" or "DDP untagged"
    local text = name .. " " .. segment.place .. ", " .. len .. " bytes" .. (segment.last and "" or ", more")
    if len == 0 then return text end
    local payload = bytes:range(segment.header_len, len)
    local body = payload:tvb()
    if segment.upper == BARE then
        if segment.queue == 2 and segment.first and segment.last and len >= 8 and body:range(0, 1):uint() == 1 then
            return add_last_message(tree:add(iwarp, payload, "Last message"), body, plan)
        end
    elseif segment.tagged or not segment.first then -- payload only
    elseif segment.opcode == 1 then
        local item = tree:add(iwarp, payload, "RDMAP Read Request")
        if add_list(item, body, 0, READ_REQUEST) then
            text = string.format("%s, %d bytes from STag 0x%08x TO %s to STag 0x%08x TO %s", name, body:range(12, 4):uint(),
                body:range(16, 4):uint(), u64(body:range(20, 8)), body:range(0, 4):uint(), u64(body:range(4, 8)))
        end
        return text
    elseif segment.opcode == 7 then
        return add_terminate(tree:add(iwarp, payload, "RDMAP Terminate"), body, plan)
    elseif segment.opcode == 8 or segment.opcode == 9 then
        local item = tree:add(iwarp, payload, "RDMAP Immediate Data")
        if add_list(item, body, 0, IMMEDIATE) and len > 8 then
            item:add_proto_expert_info(expert.protocol, "Immediate data of " .. len .. " bytes, exactly 8 are allowed")
        end
        return text
    elseif segment.opcode == 10 then
        local item = tree:add(iwarp, payload, "RDMAP Atomic Request")
        add_list(item, body, 0, ATOMIC_REQUEST)
        if len < 4 then return text end
        local code = body:range(3, 1):uint() % 16
        if not ATOMICS[code] then item:add_proto_expert_info(expert.protocol, "Unknown atomic opcode " .. code) end
        return name .. " " .. (ATOMICS[code] or "opcode " .. code) .. ", " .. segment.place
    elseif segment.opcode == 11 then
        add_list(tree:add(iwarp, payload, "RDMAP Atomic Response"), body, 0, ATOMIC_RESPONSE)
        return text
    end
    tree:add(field["ddp.payload"], payload)
    return text
end

-- Display: start-up and FPDUs ---------------------------------------------------------------------------------------

-- Adds ddpd's advertisement of regions, if `bytes` has one at `at` (docs/protocol.md, section 2).
local function add_advertisement(tree, bytes, at)
    if bytes:len() < at + 8 or bytes:raw(at, 4) ~= "DDPA" then return end
    local item = tree:add(iwarp, bytes:range(at), "Advertisement of regions")
    add_list(item, bytes, at + 4, { "advert.version", 1, "advert.bare_ddp", 1 })
    item:add(field["advert.rdmap"], bytes:range(at + 5, 1))
    item:add(field["advert.count"], bytes:range(at + 6, 2))
    local count = bytes:range(at + 6, 2):uint()
    at = at + 8
    for _ = 1, count do
        if bytes:len() < at + 24 then
            item:add_proto_expert_info(expert.malformed, "The advertisement ends within an entry")
            return
        end
        local name = math.min(bytes:range(at + 5, 1):uint(), bytes:len() - at - 24)
        local region = item:add(iwarp, bytes:range(at, 24 + name), "Region")
        region:add(field["advert.stag"], bytes:range(at, 4))
        region:add(field["advert.access"], bytes:range(at + 4, 1))
        region:add(field["advert.to"], bytes:range(at + 8, 8))
        region:add(field["advert.length"], bytes:range(at + 16, 8))
        if name > 0 then region:add(field["advert.name"], bytes:range(at + 24, name)) end
        at = at + 24 + name
    end
end

-- Adds the enhanced data of RFC 6581 §9; returns a text for the Info column.
local function add_enhanced(tree, bytes, at)
    if bytes:len() < at + 4 then
        tree:add_proto_expert_info(expert.malformed, "Enhanced data are missing")
        return ""
    end
    local item = tree:add(iwarp, bytes:range(at, 4), "Enhanced data")
    item:add(field["mpa.a"], bytes:range(at, 1))
    item:add(field["mpa.b"], bytes:range(at, 1))
    item:add(field["mpa.ird"], bytes:range(at, 2))
    item:add(field["mpa.c_rtr"], bytes:range(at + 2, 1))
    item:add(field["mpa.d_rtr"], bytes:range(at + 2, 1))
    item:add(field["mpa.ord"], bytes:range(at + 2, 2))
    return string.format(" IRD %d ORD %d", bytes:range(at, 2):uint() % 0x4000, bytes:range(at + 2, 2):uint() % 0x4000)
end

-- Adds private data from `at`; `enhanced` if they begin with enhanced data.
local function add_private_data(tree, bytes, at, enhanced)
    local text = ""
    if enhanced then
        text = add_enhanced(tree, bytes, at)
        at = at + 4
    end
    if bytes:len() > at then
        tree:add(field["mpa.private_data"], bytes:range(at))
        add_advertisement(tree, bytes, at)
        if bytes:len() - at > 512 then tree:add_proto_expert_info(expert.protocol, "More than 512 bytes of private data") end
    end
    return text
end

local function flag_letters(flags, letters)
    local text = ""
    for index = 1, #letters do
        if band(flags, 0x100 / 2 ^ index) ~= 0 then text = text .. letters:sub(index, index) end
    end
    return text
end

local function show_startup(tree, item, bytes)
    local form = item.form
    local names = { request = "MPA Request", reply = "MPA Reply", ["start key"] = "MPA Start Key" }
    local root = tree:add(iwarp, bytes:range(), "iWARP, " .. names[form])
    root:add(field["mpa.start"], bytes:range(0, 16), form):set_generated()
    if form == "start key" then
        root:add(field["mpa.key"], bytes:range(0, 15))
        root:add(field["mpa.m"], bytes:range(15, 1))
        root:add(field["mpa.c"], bytes:range(15, 1))
        root:add(field["mpa.revision"], bytes:range(15, 1), bytes:range(15, 1):uint() % 8)
        return "MPA Start Key " .. flag_letters(bytes:range(15, 1):uint(), "MC")
    end
    root:add(field["mpa.key"], bytes:range(0, 16))
    local flags, revision = bytes:range(16, 1):uint(), bytes:range(17, 1):uint()
    for _, key in ipairs({ "mpa.m", "mpa.c", "mpa.r", "mpa.s" }) do root:add(field[key], bytes:range(16, 1)) end
    root:add(field["mpa.reserved"], bytes:range(16, 1), flags % 16)
    root:add(field["mpa.revision"], bytes:range(17, 1))
    root:add(field["mpa.pd_length"], bytes:range(18, 2))
    local enhanced = band(flags, 0x10) ~= 0 and revision >= 2
    local text = add_private_data(root, bytes, 20, enhanced)
    if form == "reply" and band(flags, 0x20) ~= 0 then root:add_proto_expert_info(expert.error, "The connection is rejected") end
    if revision > 2 then root:add_proto_expert_info(expert.protocol, "Unknown revision " .. revision) end
    return string.format("%s revision %d %s%s", names[form], revision, flag_letters(flags, "MCRS"), text)
end

-- Adds the markers of an FPDU. A revision-0 sender may count FPDUPTR from the marker that starts the FPDU.
local function add_markers(root, window, shape)
    for _, position in ipairs(shape.markers) do
        if not window:has(position, MARKER_LEN) then return end
        local item = root:add(field["mpa.marker"], window:range(position, MARKER_LEN))
        item:add(field["mpa.marker.reserved"], window:range(position, 2))
        item:add(field["mpa.marker.fpduptr"], window:range(position + 2, 2))
        local pointer = window:u16(position + 2)
        pointer = pointer - pointer % 4 -- RFC 5044 §4.2: the two lowest bits count as zeros.
        local good = pointer == math.max(position - shape.header, 0) or pointer == position - shape.start
        item:add(field["mpa.marker.status"], window:range(position, MARKER_LEN), good and 1 or 0):set_generated()
        if not good then
            local expected = math.max(position - shape.header, 0)
            item:add_proto_expert_info(expert.marker, "FPDUPTR is " .. pointer .. ", expected " .. expected)
        end
    end
end

-- Returns the ULPDU and its pad without markers, as far as they are captured.
local function unmarked_bytes(window, shape)
    if #shape.runs == 1 then
        return window:range(shape.header, math.min(shape.runs[1][2], window.stop - shape.header)):tvb()
    end
    local parts = {}
    for _, run in ipairs(shape.runs) do
        local len = math.min(run[2], window.stop - run[1])
        if len > 0 then parts[#parts + 1] = window:raw(run[1], len) end
    end
    return ByteArray.new(table.concat(parts), true):tvb("FPDU without markers")
end

local function show_fpdu(tree, item, window, plan)
    local context = item.context
    local header = header_position(item.start, context.mark)
    local ulpdu = window:u16(header)
    local shape = layout(item.start, ulpdu, context.mark)
    local captured = math.min(item.stop, window.stop) - item.start
    local root = tree:add(iwarp, window:range(item.start, captured), "iWARP, FPDU of " .. item.stop - item.start .. " bytes")
    if context.assumed then root:add_proto_expert_info(expert.startup) end
    if item.gap then root:add_proto_expert_info(expert.gap) end
    add_markers(root, window, shape)
    root:add(field["mpa.ulpdu_length"], window:range(header, 2))
    local bytes = unmarked_bytes(window, shape)
    local present = math.min(ulpdu, bytes:len() - 2)
    local text
    if present > 0 then
        text = add_segment(root, bytes:range(2, present):tvb(), plan)
    else
        root:add_proto_expert_info(expert.malformed, "FPDU without ULPDU")
        text = "FPDU without ULPDU"
    end
    local pad = bytes:len() - 2 - ulpdu
    if pad > 0 then root:add(field["mpa.pad"], bytes:range(2 + ulpdu, pad)) end
    if item.stop > window.stop then
        root:add_proto_expert_info(expert.partial, item.stop - window.stop .. " bytes are not captured")
    else
        root:add_le(field["mpa.crc"], window:range(shape.crc, CRC_LEN))
        local status = root:add(field["mpa.crc.status"], window:range(shape.crc, CRC_LEN), item.verdict)
        status:set_generated()
        if item.verdict == BAD then
            status:add_proto_expert_info(expert.crc)
            text = text .. " [bad CRC]"
        end
    end
    return text
end

-- Appends `text` to the Info column, which several calls for one frame share.
local function set_column(pinfo, at, text)
    if column.frame == pinfo.number and at > column.at then
        pinfo.cols.info:append(" | " .. text)
    else
        pinfo.cols.info = string.format("%d → %d %s", pinfo.src_port, pinfo.dst_port, text)
    end
    column = { frame = pinfo.number, at = at }
    pinfo.cols.protocol = "iWARP"
end

local function show_plan(plan, window, pinfo, tree)
    local texts = {}
    for _, item in ipairs(plan) do
        if item.start >= window.stop or window.whole and item.stop > window.stop then break end
        if item.kind == "startup" then
            local len = math.min(item.stop, window.stop) - item.start
            texts[#texts + 1] = show_startup(tree, item, window:range(item.start, len):tvb())
        elseif item.kind == "fpdu" then
            texts[#texts + 1] = show_fpdu(tree, item, window, plan)
        else
            local bytes = window:range(item.start, math.min(item.stop, window.stop) - item.start)
            local root = tree:add(iwarp, bytes, "iWARP, undecoded: " .. item.text)
            root:add(field["mpa.undecoded"], bytes)
            if item.unknown then root:add_proto_expert_info(expert.startup) end
            if item.gap then root:add_proto_expert_info(expert.gap) end
            texts[#texts + 1] = "undecoded: " .. item.text
        end
    end
    if #texts > 0 then set_column(pinfo, window.start, table.concat(texts, " | ")) end
end

-- Entry points ------------------------------------------------------------------------------------------------------

-- Returns the position of the first byte of `tvb`. Wireshark calls with a part of the frame, or with reassembled bytes:
-- these start where reassembly was requested, or at the first missing byte.
local function window_start(own, tvb, pinfo, position)
    if tvb:offset() >= header.payload then return position + tvb:offset() - header.payload end
    local known = own.starts[pinfo.number]
    if known then return known end
    local best
    for start in pairs(own.pending) do
        if start <= position and start + tvb:len() > position and (not best or start > best) then best = start end
    end
    if best then own.pending[best] = nil end
    own.starts[pinfo.number] = best or own.next or position
    return own.starts[pinfo.number]
end

local function dissect(tvb, pinfo, tree, may_reassemble)
    if tvb:len() == 0 or not header then return 0 end
    local stream, own, other = directions_of(pinfo)
    local position = segment_position(pinfo, own)
    -- In the second pass, reassembled bytes may end earlier, at the end of the last complete FPDU.
    local call = pinfo.number .. " " .. (tvb:offset() < header.payload and "reassembled" or tvb:offset())
    local plan = own.plans[call]
    -- In the first pass, the stream was not yet recognised at this frame.
    if not plan and pinfo.visited then return 0 end
    local start = plan and plan.start or window_start(own, tvb, pinfo, position)
    local window = setmetatable({ tvb = tvb, start = start, stop = start + tvb:len() }, Window)
    window.whole = plan and plan.whole or not plan and may_reassemble and tvb:len() == tvb:reported_len()
    if not plan then
        plan = plan_call(stream, own, other, window)
        plan.start, plan.whole = start, window.whole
        own.plans[call] = plan
    end
    show_plan(plan, window, pinfo, tree)
    if plan.need and plan.offset < tvb:len() then
        pinfo.desegment_offset = plan.offset
        pinfo.desegment_len = plan.need
    end
    return tvb:len()
end

function iwarp.dissector(tvb, pinfo, tree)
    return dissect(tvb, pinfo, tree, pinfo.can_desegment > 0)
end

-- Recognises start-up frames, and FPDUs with a correct CRC.
local function heuristic(tvb, pinfo, tree)
    local len = tvb:len()
    if len < 4 or not header then return false end
    local first = tvb:raw(0, math.min(len, 16))
    local startup = first:sub(1, 15) == START_KEY:sub(1, #first)
    for key in pairs(KEYS) do startup = startup or first == key:sub(1, #first) end
    if not startup then
        local window = setmetatable({ tvb = tvb, start = 0, stop = len }, Window)
        local _, sure = detect(window, 0)
        if not sure then return false end
    end
    pinfo.conversation = iwarp
    -- For heuristic dissectors `can_desegment` is 0, but TCP's dissector executes their requests for reassembly.
    dissect(tvb, pinfo, tree, reassembly)
    return true
end

iwarp:register_heuristic("tcp", heuristic)
DissectorTable.get("tcp.port"):add_for_decode_as(iwarp)

-- Returns the innermost value of a field in this frame.
local function innermost(extractor)
    local all = { extractor() }
    return all[#all]
end

-- Returns the key of the SCTP stream of this chunk, shared by both directions (RFC 5043 §4).
local function sctp_key()
    local association, sid = innermost(sctp_assoc), innermost(sctp_sid)
    return (association and association.value or "") .. " " .. (sid and sid.value or "")
end

-- PPID 17: DDP stream session control (RFC 5043 §5.2.3).
function session_proto.dissector(tvb, pinfo, tree)
    local root = tree:add(iwarp, tvb(), "iWARP, DDP stream session control")
    if tvb:len() < 4 then
        root:add_proto_expert_info(expert.malformed, "Session control message of " .. tvb:len() .. " bytes, at least 4")
        return tvb:len()
    end
    root:add(field["sctp.ddp_ssn"], tvb:range(0, 2))
    root:add(field["sctp.function"], tvb:range(2, 2))
    local code = tvb:range(2, 2):uint()
    local text = add_private_data(root, tvb, 4, code >= 5 and code <= 7)
    if code == 4 and tvb:len() > 4 then root:add_proto_expert_info(expert.protocol, "Terminate with private data") end
    if code == 3 or code == 7 then root:add_proto_expert_info(expert.error, "The session is rejected") end
    if not FUNCTIONS[code] then root:add_proto_expert_info(expert.protocol, "Unknown function " .. code) end
    for _, at in ipairs({ 4, 8 }) do
        if tvb:len() >= at + 8 and tvb:raw(at, 4) == "DDPA" then
            local stated = tvb:range(at + 5, 1):uint() % 4
            sctp_upper[sctp_key()] = stated == 1 and BARE or stated == 2 and RDMAP or nil
        end
    end
    set_column(pinfo, tvb:offset(), "Session " .. (FUNCTIONS[code] or "function " .. code) .. text)
    return tvb:len()
end

-- PPID 16: DDP segment (RFC 5043 §5.2.2).
function segment_proto.dissector(tvb, pinfo, tree)
    local root = tree:add(iwarp, tvb(), "iWARP, DDP segment chunk")
    if tvb:len() < 3 then
        root:add_proto_expert_info(expert.malformed, "DDP segment chunk of " .. tvb:len() .. " bytes")
        return tvb:len()
    end
    root:add(field["sctp.ddp_ssn"], tvb:range(0, 2))
    local text = add_segment(root, tvb:range(2):tvb(), { upper = sctp_upper[sctp_key()] })
    set_column(pinfo, tvb:offset(), "SSN " .. tvb:range(0, 2):uint() .. " " .. text)
    return tvb:len()
end

DissectorTable.get("sctp.ppi"):add(16, segment_proto)
DissectorTable.get("sctp.ppi"):add(17, session_proto)
