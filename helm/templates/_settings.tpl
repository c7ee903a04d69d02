{{/* What the gateway will make of `config`: as JSON, its defaults filled in. */}}
{{- define "ostiary.settings" -}}
{{- $defaults := fromYaml (.Files.Get "files/defaults.yaml") -}}
{{- mergeOverwrite $defaults (deepCopy .Values.config) | toJson -}}
{{- end -}}

{{- define "ostiary.databaseKind" -}}
{{- $approvals := (include "ostiary.settings" . | fromJson).approvals -}}
{{- if or $approvals.database_env (not (hasPrefix "sqlite:" $approvals.database)) }}postgresql{{ else }}sqlite{{ end -}}
{{- end -}}

{{/* Files that have to outlive a pod make it a StatefulSet. */}}
{{- define "ostiary.kind" -}}
{{- $audit := (include "ostiary.settings" . | fromJson).audit -}}
{{- if and (or $audit.database $audit.database_env) (eq (include "ostiary.databaseKind" .) "postgresql") }}Deployment{{ else }}StatefulSet{{ end -}}
{{- end -}}

{{/* The most replicas that there can be. */}}
{{- define "ostiary.mostReplicas" -}}
{{- if .Values.autoscaling.enabled }}{{ int .Values.autoscaling.maxReplicas }}{{ else }}{{ int .Values.replicas }}{{ end -}}
{{- end -}}

{{/* "yes" where a job migrates before install and upgrade. */}}
{{- define "ostiary.migrates" -}}
{{- if and .Values.migrations.enabled (eq (include "ostiary.databaseKind" .) "postgresql") (not .Values.trialPostgresql.enabled) }}yes{{ end -}}
{{- end -}}

{{/* "yes" where the chart makes the bundle. */}}
{{- define "ostiary.makesBundle" -}}
{{- $policy := (include "ostiary.settings" . | fromJson).policy -}}
{{- if or .Values.opa.sidecar (has (default "" $policy.path) (list "./policy" "policy" "/etc/ostiary/policy")) }}yes{{ end -}}
{{- end -}}

{{/* Every value below /etc/ostiary, a line each: "path value". As ostiary.variables. */}}
{{- define "ostiary.files" -}}
{{- $at := .at -}}
{{- if kindIs "map" .node -}}
{{- range $key, $value := .node -}}
{{- include "ostiary.files" (dict "at" (empty $at | ternary $key (printf "%s.%s" $at $key)) "node" $value) -}}
{{- end -}}
{{- else if kindIs "slice" .node -}}
{{- range $number, $value := .node -}}
{{- include "ostiary.files" (dict "at" (printf "%s[%d]" $at $number) "node" $value) -}}
{{- end -}}
{{- else if and (kindIs "string" .node) (hasPrefix "/etc/ostiary/" (toString .node)) -}}
{{ printf "%s %s\n" $at .node }}
{{- end -}}
{{- end -}}

{{/* Every text of a node, a line each: "path text". As ostiary.variables. */}}
{{- define "ostiary.texts" -}}
{{- $at := .at -}}
{{- if kindIs "map" .node -}}
{{- range $key, $value := .node -}}
{{- include "ostiary.texts" (dict "at" (empty $at | ternary $key (printf "%s.%s" $at $key)) "node" $value) -}}
{{- end -}}
{{- else if kindIs "slice" .node -}}
{{- range $number, $value := .node -}}
{{- include "ostiary.texts" (dict "at" (printf "%s[%d]" $at $number) "node" $value) -}}
{{- end -}}
{{- else if and (kindIs "string" .node) .node -}}
{{ printf "%s %s\n" $at (replace "\n" " " .node) }}
{{- end -}}
{{- end -}}

{{/* "yes" where a URL holds a password, in whichever of its places; "user" where it names one that it may not name. */}}
{{- define "ostiary.tells" -}}
{{- if or (regexMatch "(?i)^postgres(ql)?[^:/]*://[^?#]*:[^?#]*@" .) (regexMatch "(?i)^[a-z][a-z0-9+.-]*://.*[?&](ssl)?password=" .) -}}
yes
{{- else if regexMatch "(?i)^[a-z][a-z0-9+.-]*://[^/?#]*:[^/?#]*@" . -}}
yes
{{- else if regexMatch "(?i)^https?://[^/?#]*@" . -}}
user
{{- end -}}
{{- end -}}

{{/* Every setting that names a variable, a line each: "path NAME". (dict "at" "" "node" …) */}}
{{- define "ostiary.variables" -}}
{{- $at := .at -}}
{{- if kindIs "map" .node -}}
{{- range $key, $value := .node -}}
{{- $here := empty $at | ternary $key (printf "%s.%s" $at $key) -}}
{{- if and (hasSuffix "_env" $key) (kindIs "string" $value) -}}
{{- if $value }}{{ printf "%s %s\n" $here $value }}{{ end -}}
{{- else -}}
{{- include "ostiary.variables" (dict "at" $here "node" $value) -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" .node -}}
{{- range $number, $value := .node -}}
{{- include "ostiary.variables" (dict "at" (printf "%s[%d]" $at $number) "node" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
