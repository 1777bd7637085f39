-- Wireshark dissector for the outside of Braid's bond protocol (docs/protocol.md): what is in the
-- clear. Copy it to Wireshark's folder of personal Lua plugins, and use "Decode As… Braid" on the
-- hub's UDP port, or set the port in the protocol's preferences.

local braid = Proto("braid", "Braid bond")

local KINDS = {
    [0x01] = "Initiation",
    [0x02] = "Response",
    [0x03] = "Cookie reply",
    [0x04] = "Reset",
}
local DATA = 0x40
local HEADER, TAG, MAC = 8, 16, 16
-- Least sizes: a data packet has a stamp of three bytes inside.
local LEAST = { [0x01] = 256, [0x02] = 69, [0x03] = 58, [0x04] = 20, [DATA] = HEADER + 3 + TAG }

local f = {
    kind = ProtoField.uint8("braid.type", "Type", base.HEX),
    link = ProtoField.uint8("braid.link", "Link", base.DEC),
    link_bits = ProtoField.uint8("braid.link", "Link", base.DEC, nil, 0x1f),
    version = ProtoField.uint8("braid.version", "Version", base.DEC),
    session = ProtoField.uint24("braid.session", "Receiver's session index", base.HEX),
    number = ProtoField.uint32("braid.number", "Packet number (lowest 32 bits)", base.DEC),
    sealed = ProtoField.bytes("braid.sealed", "Sealed"),
    tag = ProtoField.bytes("braid.tag", "Tag"),
    ephemeral = ProtoField.bytes("braid.ephemeral", "Ephemeral key"),
    static = ProtoField.bytes("braid.static", "Sealed static key"),
    salt = ProtoField.bytes("braid.salt", "Salt"),
    mac1 = ProtoField.bytes("braid.mac1", "MAC by the receiver's key"),
    mac2 = ProtoField.bytes("braid.mac2", "MAC by the cookie"),
    token = ProtoField.bytes("braid.token", "Reset token"),
}
braid.fields = f

braid.prefs.port = Pref.uint("UDP port", 0, "The hub's port; 0 for none")

local function initiation(buffer, tree)
    local size = buffer:len()
    tree:add(f.link, buffer(1, 1))
    tree:add(f.version, buffer(2, 1))
    tree:add(f.ephemeral, buffer(3, 32))
    tree:add(f.static, buffer(35, 48))
    tree:add(f.sealed, buffer(83, size - 83 - 2 * MAC))
    tree:add(f.mac1, buffer(size - 2 * MAC, MAC))
    tree:add(f.mac2, buffer(size - MAC, MAC))
    return "link " .. buffer(1, 1):uint()
end

local function response(buffer, tree)
    local size = buffer:len()
    tree:add(f.link, buffer(1, 1))
    tree:add(f.session, buffer(2, 3))
    tree:add(f.ephemeral, buffer(5, 32))
    tree:add(f.sealed, buffer(37, size - 37 - MAC))
    tree:add(f.mac1, buffer(size - MAC, MAC))
    return string.format("link %d, session %06x", buffer(1, 1):uint(), buffer(2, 3):uint())
end

local function cookie(buffer, tree)
    tree:add(f.link, buffer(1, 1))
    tree:add(f.salt, buffer(2, 16))
    tree:add(f.sealed, buffer(18, 16))
    tree:add(f.tag, buffer(34, TAG))
    return "link " .. buffer(1, 1):uint()
end

local function reset(buffer, tree)
    tree:add(f.session, buffer(1, 3))
    tree:add(f.token, buffer(4, 16))
    return string.format("session %06x", buffer(1, 3):uint())
end

local function data(buffer, tree)
    local size = buffer:len()
    tree:add(f.link_bits, buffer(0, 1))
    tree:add(f.session, buffer(1, 3))
    tree:add(f.number, buffer(4, 4))
    tree:add(f.sealed, buffer(HEADER, size - HEADER - TAG))
    tree:add(f.tag, buffer(size - TAG, TAG))
    return string.format(
        "link %d, session %06x, number %d",
        buffer(0, 1):uint() % 32, buffer(1, 3):uint(), buffer(4, 4):uint()
    )
end

local PARTS = { [0x01] = initiation, [0x02] = response, [0x03] = cookie, [0x04] = reset }

-- The kind that the first byte names, with its name; nil if it is not of this protocol.
local function kind_of(buffer)
    if buffer:len() == 0 then
        return nil
    end
    local first = buffer(0, 1):uint()
    if first - first % 32 == DATA then
        return DATA, "Data"
    end
    return KINDS[first] and first, KINDS[first]
end

function braid.dissector(buffer, pinfo, root)
    local kind, name = kind_of(buffer)
    if not kind or buffer:len() < LEAST[kind] then
        return 0
    end
    pinfo.cols.protocol = "Braid"
    local tree = root:add(braid, buffer(), "Braid bond, " .. name)
    tree:add(f.kind, buffer(0, 1)):append_text(" (" .. name .. ")")
    local summary = (PARTS[kind] or data)(buffer, tree)
    pinfo.cols.info = name .. ", " .. summary
    return buffer:len()
end

local ports = DissectorTable.get("udp.port")
local current = 0
function braid.prefs_changed()
    if current ~= 0 then
        ports:remove(current, braid)
    end
    current = braid.prefs.port
    if current ~= 0 then
        ports:add(current, braid)
    end
end
ports:add_for_decode_as(braid)
