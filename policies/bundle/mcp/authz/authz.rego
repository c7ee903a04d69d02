# What a caller may do, decided from data.json alone: what is not listed there is denied.
# docs/policy.md explains every member of the data and every reason, for readers who have never seen Rego.
#
# This runs for every request: what is needed twice is a rule (evaluated once), and no regular expressions (compiled
# anew each time by the embedded engine).
package mcp.authz

import rego.v1

# The one rule that the gateway asks for. At most one of its forms holds for any input.
default decision := {"effect": "deny", "scopes": [], "reasons": ["not_decided"], "disclose": false}

# No scopes with a denial: asking for them would tell a hidden tool from an absent one.
decision := {
	"effect": "deny",
	"scopes": [],
	"reasons": [refusal],
	"disclose": object.get(known, "disclose", false),
	"clear": object.get(known, "clear", []),
	"mask": object.get(known, "mask", []),
} if {
	refusal
}

decision := {
	"effect": "allow",
	"scopes": array.concat(object.get(server, "scopes", []), object.get(entry, "scopes", [])),
	"reasons": ["allowed"],
	"clear": object.get(entry, "clear", []),
	"mask": object.get(entry, "mask", []),
} if {
	not refusal
	gate == "open"
}

# The answers to what a server asks in an approved call belong to it, unless the data wants them approved as well.
decision := {
	"effect": "allow",
	"scopes": array.concat(object.get(server, "scopes", []), object.get(entry, "scopes", [])),
	"reasons": ["approved_call_continued"],
	"clear": object.get(entry, "clear", []),
	"mask": object.get(entry, "mask", []),
} if {
	not refusal
	gate == "approve"
	covered
}

decision := {
	"effect": "approve",
	"scopes": array.concat(object.get(server, "scopes", []), object.get(entry, "scopes", [])),
	"reasons": ["approval_needed"],
	"approval": terms,
	"clear": object.get(entry, "clear", []),
	"mask": object.get(entry, "mask", []),
} if {
	not refusal
	gate == "approve"
	not covered
}

# A grant (the same tool, arguments within a schema) is possible only where the data says so for the tool itself. What is
# asked for has no say in how often, how long, and within which bounds.
terms := object.remove(entry.approval, ["needed", "answers", "grant"]) if not granting

terms := object.union(
	object.remove(entry.approval, ["needed", "answers", "grant"]),
	object.union(object.remove(entry.approval.grant, ["schema"]), {"grant": {"schema": entry.approval.grant.schema}}),
) if granting

granting if {
	is_object(input.request.grant)
	is_object(entry.approval.grant)
}

# A request that names no single thing of the data: lists, descriptions, completions, subscriptions, tasks, others.
decision := {
	"effect": "allow",
	"scopes": array.concat(object.get(server, "scopes", []), entries_scopes),
	"reasons": ["allowed"],
	"visible": visible,
} if {
	not section
	not refusal
}

# ------------------------------------------------------------------ what is asked for

server := found if {
	found := data.mcp.authz.servers[input.server.name]
	is_object(found)
}

method := input.request.method

# The section of a server's data that a method reaches into with one name.
section := "tools" if method == "tools/call"

section := "prompts" if method == "prompts/get"

section := "resources" if method == "resources/read"

# Its data. `null`: nothing is listed under the name; `false` in the data closes it in so many words.
default entry := null

entry := find(section, input.request.name)

default known := {}

known := entry if is_object(entry)

gate := gate_of(section, entry) if is_object(entry)

listed_by := {
	"tools/list": "tools",
	"prompts/list": "prompts",
	"resources/list": "resources",
	"resources/templates/list": "resources",
}

# All that a request without a single name reaches, as [section, id]. All of it must be listed.
targets contains ["methods", method]

targets contains ["prompts", input.request.arguments.ref.name] if {
	method == "completion/complete"
	input.request.arguments.ref.type == "ref/prompt"
}

targets contains [kind, uri] if {
	method == "completion/complete"
	input.request.arguments.ref.type == "ref/resource"
	uri := input.request.arguments.ref.uri
	kind := kind_of(uri)
}

targets contains ["resources", uri] if {
	method == "subscriptions/listen"
	uris := input.request.arguments.notifications.resourceSubscriptions
	is_array(uris)
	some uri in uris
}

# A task is as callable as the tool that made it. What is no task of this caller's (`tool` is null) reaches nothing: the
# gateway itself answers it, like every id that was never given out.
targets contains ["tools", task.tool] if {
	not section
	some task in input.request.tasks
	task.tool != null
}

# The data of each of them, as [section, data].
entries := [[pair[0], one] |
	some pair in targets
	one := find(pair[0], pair[1])
	is_object(one)
]

entries_scopes := [scope |
	some pair in entries
	some scope in object.get(pair[1], "scopes", [])
]

# ------------------------------------------------------------------ what stands against it

# The first thing that stands against the request, in this order; undefined when nothing does.
refusal := "phase_unknown" if {
	not phase_known
} else := "server_not_listed" if {
	not server
} else := reason if {
	reason := server_fault
} else := reason if {
	is_object(entry)
	reason := fault(entry)
} else := "approval_terms_missing" if {
	gate == "unstated"
} else := reason if {
	section
	not is_object(entry)
	reason := absence(section, input.request.name)
} else := reason if {
	not section
	reason := refusal_of_several
}

refusal_of_several := "target_missing" if {
	not all_named
} else := reason if {
	found := [why | some pair in targets; why := refusal_of(pair[0], pair[1], find_or_null(pair[0], pair[1]))]
	reason := min(found)
} else := "approval_not_possible" if {
	some pair in entries
	gate_of(pair[0], pair[1]) != "open"
	not settled(pair[0])
}

# The call that made a task had its approval. New input for it was seen by nobody who approved: that it needs no
# approval must be said in so many words.
settled("tools") if method != "tasks/update"

settled("tools") if server.methods["tasks/update"].approval.needed == false

# Of a held call nothing has gone anywhere yet: what it is given is judged as a leg of the call itself when it runs.
settled("tools") if {
	some task in input.request.tasks
	task.held == true
}

refusal_of(place, id, found) := reason if {
	is_object(found)
	reason := fault(found)
} else := "approval_terms_missing" if {
	is_object(found)
	gate_of(place, found) == "unstated"
} else := reason if {
	not is_object(found)
	reason := absence(place, id)
}

absence("tools", _) := "tool_not_listed"

absence("prompts", _) := "prompt_not_listed"

absence("templates", _) := "resource_not_listed"

absence("methods", _) := "method_not_listed"

absence("resources", id) := "resource_uri_not_normal" if {
	not named("resources", id)
	not normal(id)
} else := "resource_not_listed"

# What makes this caller a stranger to an entry. A misspelt member must never silently mean "no such rule"; a member
# of a wrong type makes the decision malformed, or this denial.
fault(one) := "data_member_unknown" if {
	count(object.keys(one) - entry_members) > 0
} else := "environment_not_listed" if {
	environments := one.environments
	not input.server.environment in environments
} else := "tenant_not_listed" if {
	tenants := one.tenants
	not input.subject.tenant in tenants
}

server_fault := "data_member_unknown" if {
	count(object.keys(server) - server_members) > 0
} else := "environment_not_listed" if {
	environments := server.environments
	not input.server.environment in environments
} else := "tenant_not_listed" if {
	tenants := server.tenants
	not input.subject.tenant in tenants
}

entry_members := {"description", "effect", "scopes", "approval", "clear", "mask", "environments", "tenants", "disclose"}

server_members := {"description", "scopes", "environments", "tenants", "tools", "prompts", "resources", "methods"}

phase_known if input.phase == "call"

phase_known if input.phase == "list"

# A completion names what it completes, a subscription names resources by URI and tasks by id.
all_named if {
	method != "completion/complete"
	method != "subscriptions/listen"
	not startswith(method, "tasks/")
}

all_named if {
	startswith(method, "tasks/")
	count(input.request.tasks) == 1
}

all_named if {
	method == "completion/complete"
	count(targets) == 2
}

all_named if {
	method == "subscriptions/listen"
	uris := object.get(input.request.arguments.notifications, "resourceSubscriptions", [])
	is_array(uris)
	every uri in uris { is_string(uri) }
	ids := object.get(input.request.arguments.notifications, "taskIds", [])
	ids == [task.id | some task in object.get(input.request, "tasks", [])]
}

# ------------------------------------------------------------------ how data is found

# Names are compared byte by byte: no case folding, no Unicode normalisation, no pattern.
find("tools", id) := server.tools[id]

find("prompts", id) := server.prompts[id]

find("methods", id) := server.methods[id]

# Whether the data says anything under exactly this name, be it `false`.
named(place, id) if {
	value := server[place][id]
	type_name(value) != ""
}

# Naming a section opens its lists and the server's description; what they show is judged entry by entry. Tools that are
# called may make tasks, so naming tools opens those as well.
find("methods", id) := {} if {
	not named("methods", id)
	opened(id)
}

opened(id) if id == "server/discover"

opened(id) if listed_by[id] in object.keys(server)

opened(id) if {
	id in {"tasks/get", "tasks/update", "tasks/cancel"}
	"tools" in object.keys(server)
}

# A key that ends with `/` covers what lies below it, any other exactly itself.
find("resources", uri) := server.resources[uri]

find("resources", uri) := below(uri) if {
	not named("resources", uri)
	normal(uri)
}

# A template: what stands before its first variable must lie below a key.
find("templates", id) := below(literal) if {
	literal := split(id, "{")[0]
	normal(literal)
}

kind_of(uri) := "templates" if contains(uri, "{")

kind_of(uri) := "resources" if not contains(uri, "{")

# The longest key that covers the URI decides, so that a part of what is open can be closed.
below(uri) := server.resources[key] if {
	covering := [[count(name), name] |
		some name, _ in server.resources
		endswith(name, "/")
		startswith(uri, name)
		not startswith(trim_prefix(uri, name), "/")
	]
	key := max(covering)[1]
}

find_or_null(place, id) := one if {
	one := find(place, id)
} else := null

# Below a key only a URI with one reading may be asked for: whatever a server might decode, resolve or collapse
# (encoded letters, dots, slashes; dot segments; empty segments) could lead to another place than the one judged.
normal(uri) if {
	trim_left(uri, plain) == ""
	pieces := split(uri, "%")
	every piece in array.slice(pieces, 1, count(pieces)) { escape(piece) }
	every part in split(strings.replace_n({"?": "/", "#": "/", ";": "/"}, uri), "/") { not dots(part) }
	rest := split(uri, "://")
	count(rest) < 3
	not contains(rest[count(rest) - 1], "//")
}

plain := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?#[]@!$&'()*+,;=%"

# What may follow a `%`: no letter, digit, dot, hyphen, underscore, tilde, slash, backslash, percent or control
# character in disguise, no lower-case hexadecimal, no overlong UTF-8.
second_digits := {
	"2": "012346789ABC",
	"3": "ACDEF",
	"4": "0",
	"5": "BDE",
	"6": "0",
	"7": "BCD",
	"8": "0123456789ABCDEF",
	"9": "0123456789ABCDEF",
	"A": "0123456789ABCDEF",
	"B": "0123456789ABCDEF",
	"C": "23456789ABCDEF",
	"D": "0123456789ABCDEF",
	"E": "0123456789ABCDEF",
	"F": "0123456789ABCDEF",
}

escape(piece) if {
	count(piece) > 1
	contains(second_digits[substring(piece, 0, 1)], substring(piece, 1, 1))
}

dots(part) if {
	part != ""
	trim(part, ".") == ""
}

# ------------------------------------------------------------------ whether a person must say yes

# "open", "approve" or "unstated". A tool that doesn't say that it only reads changes something, and a change
# must say whether a person approves it.
gate_of(place, one) := "open" if {
	reads(place, one)
	object.get(one, "approval", null) == null
} else := "open" if {
	effect_known(one)
	one.approval.needed == false
} else := "approve" if {
	effect_known(one)
	is_object(one.approval)
	object.get(one.approval, "needed", true) == true
	object.get(one.approval, "answers", "covered") in ["covered", "again"]
	count(one.approval.approvers) > 0
	grant_stated(one.approval)
} else := "unstated"

grant_stated(approval) if object.get(approval, "grant", null) == null

grant_stated(approval) if {
	is_object(approval.grant.schema)
	is_number(approval.grant.uses)
	is_number(approval.grant.ttl_s)
	count(object.keys(approval.grant) - {"schema", "uses", "ttl_s"}) == 0
}

# Whether the request goes on with a call that a person approved (the gateway's own seal says so), and that approval
# covers the answers.
covered if {
	input.request.approved == true
	object.get(entry.approval, "answers", "covered") == "covered"
}

reads("tools", one) if one.effect == "read"

reads(place, one) if {
	place != "tools"
	object.get(one, "effect", "read") == "read"
}

effect_known(one) if object.get(one, "effect", "write") in ["read", "write"]

# ------------------------------------------------------------------ lists

# Listed is what a call would not be denied, scopes and approval taken as obtainable.
visible := [candidate.id |
	input.phase == "list"
	some candidate in input.candidates
	place := listed_by[method]
	one := shown(place, candidate.id)
	is_object(one)
	not refusal_of(place, candidate.id, one)
]

shown(place, id) := find(place, id) if method != "resources/templates/list"

shown(_, id) := find("templates", id) if method == "resources/templates/list"
