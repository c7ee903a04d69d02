{{/* What the cluster holds already, and what it lets nobody change. Without a cluster (`helm template`), nothing is there. */}}

{{/*
The Deployment's or StatefulSet's `replicas`, or nothing where the autoscaler counts. While the number still is Helm's
alone it stays in the manifest: taken out, it would be Kubernetes' default, and all replicas but one would go at once.
*/}}
{{- define "ostiary.replicas" -}}
{{- if not .Values.autoscaling.enabled }}
replicas: {{ int .Values.replicas }}
{{- else }}
{{- $live := lookup "apps/v1" (include "ostiary.kind" .) .Release.Namespace (include "ostiary.fullname" .) }}
{{- $others := false }}
{{- $helms := false }}
{{- range dig "metadata" "managedFields" list (default dict $live) }}
{{- if hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas" }}
{{- if and (eq .manager "helm") (eq .operation "Apply") }}{{ $helms = true }}{{ else }}{{ $others = true }}{{ end }}
{{- end }}
{{- end }}
{{- if and $helms (not $others) }}
replicas: {{ int $live.spec.replicas }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A size as a number of bytes ("10Gi" -> 10737418240), or nothing where it is written in a way that is rare. */}}
{{- define "ostiary.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- if and (hasKey $units $unit) (regexMatch "^[0-9.]+[A-Za-z]*$" .) -}}
{{- mulf (float64 (trimSuffix $unit .)) (get $units $unit) | printf "%.0f" -}}
{{- end -}}
{{- end -}}

{{/* Volumes of a StatefulSet that is there: (dict "root" $ "name" … "at" the values' key "size" … "class" … "mode" …). */}}
{{- define "ostiary.refuse.volumes" -}}
{{- $live := lookup "apps/v1" "StatefulSet" .root.Release.Namespace .name }}
{{- range dig "spec" "volumeClaimTemplates" list (default dict $live) }}
{{- $size := .spec.resources.requests.storage }}
{{- $both := list (include "ostiary.bytes" (toString $size)) (include "ostiary.bytes" (toString $.size)) }}
{{- $was := list }}
{{- if and (first $both) (last $both) (ne (first $both) (last $both)) }}{{ $was = append $was (printf "%s.size was %s" $.at $size) }}{{ end }}
{{- if ne (default "" .spec.storageClassName) $.class }}{{ $was = append $was (printf "%s.storageClass was %q" $.at (default "" .spec.storageClassName)) }}{{ end }}
{{- if ne (first .spec.accessModes) $.mode }}{{ $was = append $was (printf "%s.accessMode was %s" $.at (first .spec.accessModes)) }}{{ end }}
{{- range $was }}
{{ . }} when the StatefulSet was made, and Kubernetes changes no such thing: kubectl -n {{ $.root.Release.Namespace }} delete statefulset {{ $.name }} --cascade=orphan, then upgrade
{{- end }}
{{- end }}
{{- end -}}

{{- define "ostiary.refuse.live" -}}
{{- $values := .root.Values -}}
{{- $name := include "ostiary.fullname" .root }}
{{- $kind := include "ostiary.kind" .root }}
{{- if eq $kind "StatefulSet" }}
{{- include "ostiary.refuse.volumes" (dict "root" .root "name" $name "at" "persistence" "size" $values.persistence.size "class" $values.persistence.storageClass "mode" $values.persistence.accessMode) }}
{{- end }}
{{- with $values.trialPostgresql }}
{{- if .enabled }}
{{- include "ostiary.refuse.volumes" (dict "root" $.root "name" (include "ostiary.trial.name" $.root) "at" "trialPostgresql" "size" .size "class" .storageClass "mode" "ReadWriteOnce") }}
{{- end }}
{{- end }}
{{- $selector := dig "spec" "selector" "matchLabels" dict (default dict (lookup "apps/v1" $kind .root.Release.Namespace $name)) }}
{{- if and $selector (ne (toJson $selector) (include "ostiary.selector" (dict "root" .root "component" "gateway") | fromYaml | toJson)) }}
nameOverride: the {{ $kind }} {{ $name }} selects its pods by the name {{ get $selector "app.kubernetes.io/name" }}, and Kubernetes changes no such thing
{{- end }}
{{- end -}}
