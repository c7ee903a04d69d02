"""What is promised: the rows of hostile input, faults and load, and what went wrong in other gateways.

`ROWS` are named by the tests that defend them (in a docstring, or `jwt_02` in a name); `CASES` name their tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ROWS: Final[Mapping[str, str]] = {
    "FRM-01": "two lengths, or one that is not spelled exactly, hide no request",
    "FRM-02": "mutations of Transfer-Encoding hide no request",
    "FRM-04": "hosts, lines and targets have one reading",
    "FRM-06": "POST is the one method",
    "FRM-07": "what a browser sends without asking is 415",
    "FRM-08": "a compressed body is not inflated",
    "FRM-09": "heads and bodies are bounded in memory",
    "FRM-10": "slow clients are cut off, and good traffic does not notice",
    "FRM-11": "no upgrade, no 100 before the token, no unread body as the next request",
    "HDR-01": "a missing mirrored header is -32020",
    "HDR-02": "a header that says another thing than the body is -32020",
    "HDR-03": "two versions are a mismatch before they are unsupported",
    "HDR-04": "names in any case, values trimmed",
    "HDR-06": "a header twice is -32020",
    "HDR-08": "encoded values have one spelling",
    "HDR-11": "raw bytes in a value are -32020",
    "HDR-13": "parameters' headers: held where they are bound, else forwarded, never steering",
    "HDR-14": "aliases and forwarding headers reach no server",
    "JSN-01": "a member twice is refused at any depth",
    "JSN-05": "bad UTF-8 and numbers are refused",
    "JSN-06": "lone surrogates are refused",
    "JSN-07": "depth and size are bounded in time and memory",
    "JSN-08": "the JSONTestSuite as pinned",
    "RPC-01": "a batch or no object is -32600",
    "RPC-03": "a wrong id or envelope is -32600",
    "RPC-04": "missing metadata is -32602",
    "RPC-05": "an unsupported version is -32022 with what is supported",
    "RPC-06": "unknown and removed methods are -32601",
    "RPC-07": "codes in their ranges, always",
    "RPC-08": "an id comes back with its type and digits",
    "RPC-09": "what a client says of itself decides nothing",
    "ORG-01": "a foreign Origin is 403",
    "ORG-03": "hosts and origins are those of the configuration",
    "JWT-01": "no or bad credential: the challenge, and the metadata",
    "JWT-02": "attacks on algorithms and signatures",
    "JWT-03": "a token opens no key, file or connection",
    "JWT-04": "a flood of unknown key ids costs two fetches",
    "JWT-05": "audience and issuer exactly",
    "JWT-06": "times are numbers, required and bounded",
    "JWT-09": "scopes are exact tokens",
    "JWT-12": "a verifier that fails is never a caller",
    "JWT-13": "a stream ends with its token",
    "AZ-01": "an engine that is down is 503",
    "AZ-03": "a name is only data",
    "AZ-04": "names that look alike are not the name",
    "AZ-05": "listed is what can be called",
    "AZ-07": "an expensive policy is refused at its deadline",
    "AZ-08": "a changed policy judges whole, and fails no request",
    "AZ-09": "the embedded engine decides as OPA does, and the corridor as an oracle in plain Python",
    "APR-01": "an approval is used once",
    "APR-02": "of parallel uses one runs",
    "APR-03": "another argument is another effect",
    "APR-04": "another spelling is the same effect",
    "APR-07": "an approval is bound to who, where and what",
    "APR-09": "an approved call goes on over its legs, and completes once",
    "APR-10": "a tool that changed needs a new approval",
    "APR-11": "ids are not guessed",
    "APR-12": "roles and policy are looked at again",
    "APR-13": "a crash never runs anything twice",
    "UPS-01": "no credential, cookie or session passes in either direction",
    "UPS-02": "no other destination than the configured",
    "UPS-03": "what is not the answer to this request is not delivered",
    "UPS-05": "a client's events are those of its server",
    "UPS-07": "a bomb costs little and ends in an error",
    "UPS-08": "a broken server is an error, and its call is sent once",
    "UPS-09": "a client that closes ends the call within a second",
    "CCH-02": "no answer or verdict crosses callers, arguments or revisions",
    "AUD-01": "one record for each refusal, two for each call",
    "AUD-02": "no secret in clear",
    "AUD-04": "one escaped line, whatever is in it",
    "AUD-05": "tampering is found at its place",
    "AUD-06": "cut tails and swapped chains are found",
    "AUD-07": "no durable record, no call",
    "AUD-08": "made-up names make no series",
    "OPS-01": "a stop is graceful",
    "OPS-02": "many idle streams cost little",
    "OPS-03": "a reader that stops holds little and disturbs nobody",
    "OPS-04": "overload is refused early",
    "OPS-05": "connecting and breaking off leaks nothing",
    "OPS-06": "a dependency that comes back is used again soon, and nothing passes meanwhile",
    "OPS-07": "unsafe configuration and old dependencies do not start",
}
"""Each has a test that runs with every change, at a small scale where the whole takes long (`make soak`)."""

LATER: Final[Mapping[str, str]] = {}
"""Rows of a later issue."""

CASES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("Any POST that is not application/json is 415 before the policy, and recorded.", "stacklok/toolhive#6234"): (
        "rows/test_refusals.py::test_a_refusal_is_refused_and_nothing_else_happens",
        "edge/test_edge.py::test_only_json_in_utf8_is_a_body",
    ),
    (
        "A media type is compared ignoring case, and what is JSON in any spelling is judged alike.",
        "TykTechnologies/tyk#8539",
    ): (
        "rows/test_served.py::test_another_spelling_of_the_media_type_is_judged_alike",
        "edge/test_edge.py::test_json_is_accepted_however_it_is_spelled",
    ),
    ("A batch is -32600 and one record.", "stacklok/toolhive#5931, #5745"): (
        "rows/test_refusals.py::test_a_refusal_is_refused_and_nothing_else_happens",
        "contract/test_envelope.py::test_anything_but_one_object_is_refused",
    ),
    ("Case variants of reserved names are refused.", "docker/mcp-gateway#414, CVE-2026-27896"): (
        "rows/test_refusals.py::test_a_refusal_is_refused_and_nothing_else_happens",
        "contract/test_envelope.py::test_variants_of_reserved_names_are_refused_where_they_are_reserved",
    ),
    ("A doubled member at any depth is refused; the judged bytes are forwarded.", "envoyproxy/envoy#45202"): (
        "contract/test_strict_json.py::test_a_name_that_stands_twice_has_two_readings",
        "contract/test_admission.py::test_an_allowed_call_leaves_as_the_bytes_that_were_judged",
        "rows/test_served.py::test_nothing_of_the_callers_own_headers_travels",
    ),
    ("A repeated header of the protocol is -32020, a repeated credential 401.", "agentgateway#2535"): (
        "contract/test_headers.py::test_a_repeated_header_is_a_mismatch",
        "contract/test_headers.py::test_a_repeated_parameter_header_is_a_mismatch",
        "pipeline/test_tokens.py::test_jwt_01_exactly_one_credential",
    ),
    (
        "An encoded name is decoded, then compared; a malformed one is -32020; a literal like one is encoded.",
        "mcp-hangar#1050",
    ): (
        "rows/test_served.py::test_a_name_may_be_encoded_and_a_literal_is_itself",
        "contract/test_headers.py::test_a_malformed_encoding_equals_nothing",
    ),
    ("A mismatch is HTTP 400 -32020 with the request's id, never a tool's error.", "Kuadrant router_202607.go"): (
        "rows/test_refusals.py::test_a_refusal_is_refused_and_nothing_else_happens",
        "rows/test_served.py::test_a_split_of_header_and_body_reaches_neither_policy_nor_tool",
    ),
    ("All mirrored headers are sent on or written anew; unknown Mcp-Param-* pass.", "railwayapp/cli#1172"): (
        "contract/test_admission.py::test_the_name_is_written_anew",
        "contract/test_bindings.py::test_a_body_that_is_written_anew_has_its_headers_written_anew",
        "rows/test_served.py::test_a_parameters_header_that_nothing_names_is_forwarded",
        "conformance/test_suite.py::test_nothing_that_passes_directly_fails_through_the_gateway",
    ),
    (
        "A quirk of a client is named, counted, recorded and off; otherwise the refusal names the header.",
        "agentgateway#3439, github/copilot-cli#4370",
    ): (
        "rows/test_legacy.py::test_quirks_are_named_counted_and_off_by_default",
        "house/test_quirks.py::test_a_quirk_has_a_source_and_a_place_on_the_page",
    ),
    ("Unknown keys of _meta pass untouched, reserved ones included.", "stacklok/toolhive#6231, #6188"): (
        "rows/test_served.py::test_meta_that_nobody_here_knows_reaches_the_server",
    ),
    (
        "An audience that compares with nothing accepts nobody; every way in checks it.",
        "agentgateway#3216, #1986",
    ): (
        "pipeline/test_tokens.py::test_an_empty_resource_accepts_nobody",
        "pipeline/test_tokens.py::test_g5_a_remembered_token_is_judged_again",
        "rows/test_tokens.py::test_the_audience_is_the_server_exactly",
    ),
    ("Issuer and audience are settings of their own, both required.", "ContextForge#1792, #3563"): (
        "pipeline/test_tokens.py::test_jwt_05_the_issuer_is_exactly_a_configured_one",
        "house/test_config.py::test_what_is_wrong_is_named",
    ),
    (
        "Host and X-Forwarded-* change neither what is advertised nor what is judged.",
        "oauth2-proxy GHSA-7x63-xv5r-3p2x",
    ): (
        "rows/test_tokens.py::test_metadata_comes_from_configuration_alone",
        "edge/test_edge.py::test_another_host_is_not_served",
        "rows/test_served.py::test_nothing_of_the_callers_own_headers_travels",
    ),
    (
        "alg=none or an unknown kid is 401 and one record; rotation is met by one refresh.",
        "mcp-hangar#996, mckinsey/ark#2568",
    ): (
        "rows/test_tokens.py::test_who_a_token_says_it_is_counts_only_once_it_is_verified",
        "ports/test_keys.py::test_a_new_key_serves_at_once",
    ),
    ("Who is named in the record was verified.", "Kuadrant#1083, #1499"): (
        "rows/test_tokens.py::test_who_a_token_says_it_is_counts_only_once_it_is_verified",
    ),
    ("No credential of the client's goes upstream.", "stacklok/toolhive#6235, fastmcp#3262"): (
        "rows/test_served.py::test_nothing_of_the_callers_own_headers_travels",
        "ports/test_upstream.py::test_the_callers_credentials_never_travel",
    ),
    ("A session id of a client is ignored, never echoed, never routed on.", "agentgateway GHSA-mvgg-jvj2-4frq"): (
        "rows/test_served.py::test_nothing_of_the_callers_own_headers_travels",
        "rows/test_served.py::test_what_a_server_says_of_itself_stays_behind",
        "rows/test_legacy.py::test_a_newer_client_is_served_as_ever_whatever_session_it_sends",
        "rows/test_pair.py::test_consecutive_calls_land_anywhere",
    ),
    ("The policy sees the arguments; the list phase is named.", "agentgateway#2069"): (
        "contract/test_admission.py::test_the_policys_question",
        "contract/test_admission.py::test_the_policys_question_about_a_list",
    ),
    ("Listed is what can be called.", "TykTechnologies/tyk#8246"): (
        "rows/test_offers.py::test_listed_is_what_can_be_called",
        "rows/test_lists.py::test_every_page_is_filtered_by_one_question_and_keeps_its_cursor",
    ),
    (
        "A refusal is a JSON-RPC error with id, rule and when to come again; 429 has Retry-After.",
        "agentgateway#2331, LiteLLM#32563",
    ): (
        "rows/test_refusals.py::test_a_refusal_is_refused_and_nothing_else_happens",
        "rows/test_ailing.py::test_one_requester_opens_so_many_tickets",
    ),
    (
        "An approval of one call is none of another, and a changed argument does not burn it.",
        "orka#306, exochain#413",
    ): (
        "rows/test_approvals.py::test_any_other_arguments_are_another_call",
        "rows/test_approvals.py::test_an_approval_is_bound_to_who_what_and_where",
        "rows/test_grants.py::test_a_grant_covers_what_it_says_and_nothing_else",
    ),
    (
        "The canonical form is RFC 8785 of what was sent: types, 1 and 1.0, -0, Unicode; nothing is filled in.",
        "quater#72",
    ): (
        "contract/test_fingerprint.py::test_the_published_vectors",
        "contract/test_fingerprint.py::test_another_spelling_is_the_same_effect",
        "contract/test_fingerprint.py::test_another_value_is_another_effect",
        "contract/test_fingerprint.py::test_normal_forms_of_unicode_are_told_apart",
    ),
    ("Policy, definition, time and person are judged again when the call runs.", "mcp-hangar#673, #674"): (
        "rows/test_ailing.py::test_an_approval_is_worth_what_the_policy_still_says",
        "rows/test_approvals.py::test_a_tool_that_changed_needs_a_new_approval",
        "rows/test_pins.py::test_an_approval_does_not_outlive_its_definition",
        "pipeline/test_grants.py::test_the_policy_of_this_moment_overrides",
        "pipeline/test_grants.py::test_a_changed_tool_ends_its_grants",
    ),
    (
        "Who approves is verified, permitted and not the requester; time that runs out is a no.",
        "mcp-hangar#665, AGT#3106",
    ): (
        "rows/test_approvals.py::test_whoever_asks_does_not_decide",
        "rows/test_approvals.py::test_a_person_without_the_scope_decides_nothing",
        "ports/test_approvals_desk.py::test_expiry_is_a_denial_of_a_decision_too",
    ),
    (
        "No approver, no approval; a rule that can never match is told when the configuration is checked.",
        "mcp-hangar#678, #1042, AGT#3448",
    ): (
        "ports/test_approvals_rules.py::test_terms_that_nobody_could_meet_are_an_error",
        "ports/test_approvals_rules.py::test_an_entry_that_can_match_nobody_is_an_error",
        "ports/test_approvals_desk.py::test_what_nobody_could_approve_is_refused_without_a_ticket",
        "ports/test_policy_verdict.py::test_one_wrong_term_spoils_the_verdict",
        "house/test_dead_rules.py::test_a_mistake_in_the_data_is_found_and_only_it",
        "house/test_dead_rules.py::test_what_matches_nothing_behind_this_configuration_is_told_and_only_it",
    ),
    ("What was used stays used beyond its time; no two lists of fields share a digest.", "AGT#3247, #2177"): (
        "ports/test_approvals_rules.py::test_final_states_have_no_way_out",
        "ports/test_approvals_desk.py::test_an_approval_that_is_over_runs_nothing",
        "contract/test_fingerprint.py::test_fields_cannot_run_into_each_other",
    ),
    ("The same call attaches to the one ticket; tickets per requester are limited.", "atryum#89"): (
        "pipeline/test_errands.py::test_repeating_the_held_call_gives_the_same_task",
        "rows/test_approvals.py::test_the_same_call_attaches_to_the_one_ticket",
        "ports/test_webhooks.py::test_each_event_is_told_once",
        "rows/test_ailing.py::test_one_requester_opens_so_many_tickets",
    ),
    ("A held call is answered at once and goes on by the exact repetition.", "talon#431, gridctl#1150"): (
        "e2e/test_errands.py::test_the_python_client_follows_a_held_call_through_both_gateways",
        "rows/test_approvals.py::test_an_approval_is_used_once_and_all_that_is_none_looks_the_same",
        "e2e/test_sdk_python.py::test_a_gated_call_runs_once_after_approval_by_repeating_it",
        "rows/test_waiting.py::test_a_kept_call_runs_once_it_is_approved",
        "e2e/test_sdk_challenge.py::test_the_python_client_waits_by_itself_and_pays_once",
        "e2e/test_sdk_challenge.py::test_the_typescript_client_waits_by_itself",
        "e2e/test_sdk_challenge.py::test_the_python_client_that_can_be_asked_nothing_repeats_the_call",
    ),
    ("Every kind of refusal is one record, defects included.", "stacklok/toolhive#5871, #5872, #5874"): (
        "rows/test_audit.py::test_every_refusal_of_the_table_is_exactly_one_record",
        "rows/test_ailing.py::test_a_defect_refuses_and_gives_nothing_away",
        "rows/test_completeness.py::test_every_refusal_is_provoked_or_belongs_to_a_later_issue",
        "pipeline/test_hostile.py::test_every_request_ends_once",
    ),
    ("No record, no call: 503, counted, not ready.", "AGT#2057, astrid#466"): (
        "rows/test_ailing.py::test_without_a_record_nothing_is_done",
    ),
    ("A cut tail is found against a checkpoint kept elsewhere.", "bernstein#5034"): (
        "ports/test_audit_commands.py::test_a_cut_tail_is_found_against_a_checkpoint",
    ),
    ("Planted secrets show up in no record, log, metric, error or ticket.", "AGT#3248, stacklok/toolhive#5191"): (
        "rows/test_audit.py::test_the_search_for_secrets_finds_what_is_there",
        "rows/test_refusals.py::test_a_refusal_is_refused_and_nothing_else_happens",
        "rows/test_ailing.py::test_a_defect_refuses_and_gives_nothing_away",
        "rows/test_approvals.py::test_what_the_policy_masks_nobody_is_shown",
        "rows/test_grants.py::test_a_receiver_is_told_once_signed_and_no_value",
        "ports/test_webhooks.py::test_no_value_leaves_that_is_not_cleared",
    ),
    (
        "A tools/call reaches a server once, whatever becomes of it; what nobody knows is unknown.",
        "ContextForge#5393, bifrost#1568",
    ): (
        "rows/test_upstream.py::test_a_broken_answer_is_the_gateways_error_and_the_call_is_sent_once",
        "rows/test_upstream.py::test_a_stream_that_breaks_ends_in_an_error_with_the_callers_id",
        "ports/test_upstream_faults.py::test_no_second_replica_is_tried_once_a_byte_was_sent",
        "e2e/test_crash.py::test_a_death_at_any_step_never_executes_twice",
    ),
    (
        "One request in is one request out, questions included; no answer is kept for another caller.",
        "api7/aisix#980",
    ): (
        "rows/test_offers.py::test_no_answer_is_anybody_elses",
        "rows/test_lists.py::test_equal_requests_of_other_rights_are_other_requests",
    ),
    (
        "A client that closes ends the call at its server within a second, recorded as cancelled.",
        "fastmcp#4124",
    ): (
        "rows/test_upstream.py::test_a_client_that_goes_away_ends_the_call",
        "rows/test_audit.py::test_a_client_that_leaves_is_one_decision_and_one_end",
    ),
    ("A body is bounded while it is read, with a length or without.", "stacklok/toolhive GHSA-grwg-v9p7-76m2"): (
        "edge/test_limits.py::test_a_body_has_a_size",
        "edge/test_limits.py::test_memory_is_bounded_by_the_limits",
    ),
    ("What is only there in part is never called complete.", "agentgateway#3004"): (
        "ports/test_catalog.py::test_a_listing_that_is_none_is_a_fault",
        "ports/test_catalog.py::test_a_page_in_the_middle_is_no_empty_list",
        "rows/test_upstream.py::test_replicas_that_refuse_connections_are_unreachable",
    ),
}
"""(What a better gateway does, where another one did not) -> the tests that hold this one to it, under `tests/`."""
