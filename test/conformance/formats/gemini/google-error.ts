import type { Flaw } from '#apps/simulator/wire/check-shape.ts';
import { Refusal, type Failure } from '#apps/simulator/wire/wire-format.ts';

/** A 400 INVALID_ARGUMENT. */
export function refuse(message: string): never {
  throw new Refusal({ status: 400, message });
}

export function refuseFlaw({ kind, path, message }: Flaw): never {
  if (kind === 'unknown') {
    const parent = protoPath(path.slice(0, -1));
    const at = parent === '' ? '' : ` at '${parent}'`;
    return refuse(`Invalid JSON payload received. Unknown name "${path.at(-1)}"${at}: Cannot find field.`);
  }
  if (kind === 'missing')
    return refuse(`* GenerateContentRequest.${protoPath(path)}: ${protoPath(path)} is not specified`);
  return refuse(`* GenerateContentRequest.${protoPath(path)}: ${message}`);
}

/** Formats a path like `generation_config.stop_sequences[0]`. */
function protoPath(path: readonly (string | number)[]): string {
  return path
    .map((step) =>
      typeof step === 'number' ? `[${step}]` : `.${step.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}`,
    )
    .join('')
    .replace(/^\./, '');
}

const statuses: Record<number, string> = {
  400: 'INVALID_ARGUMENT',
  401: 'UNAUTHENTICATED',
  403: 'PERMISSION_DENIED',
  404: 'NOT_FOUND',
  409: 'ABORTED',
  429: 'RESOURCE_EXHAUSTED',
  499: 'CANCELLED',
  501: 'UNIMPLEMENTED',
  503: 'UNAVAILABLE',
  504: 'DEADLINE_EXCEEDED',
};

/** Google's error: `{error: {code, message, status, details}}`, with RetryInfo if a retry time is known. */
export function googleError(failure: Failure) {
  const { status, message } = failure;
  const name = statuses[status] ?? (status >= 500 ? 'INTERNAL' : 'FAILED_PRECONDITION');
  const details = detailsOf(failure);
  return { error: { code: status, message, status: name, ...(details.length === 0 ? {} : { details }) } };
}

function detailsOf({ status, message, code, retryAfterMs }: Failure): object[] {
  if (code === 'API_KEY_INVALID') {
    return [
      {
        '@type': 'type.googleapis.com/google.rpc.ErrorInfo',
        reason: code,
        domain: 'googleapis.com',
        metadata: { service: 'generativelanguage.googleapis.com' },
      },
    ];
  }
  const unknownName = /^Invalid JSON payload received\. Unknown name "[^"]*"(?: at '([^']*)')?/.exec(message);
  if (unknownName !== null) {
    const fieldViolations = [
      { ...(unknownName[1] === undefined ? {} : { field: unknownName[1] }), description: message },
    ];
    return [{ '@type': 'type.googleapis.com/google.rpc.BadRequest', fieldViolations }];
  }
  if (status !== 429) return [];
  const quotaId = 'GenerateRequestsPerMinutePerProjectPerModel-FreeTier';
  const quota = { '@type': 'type.googleapis.com/google.rpc.QuotaFailure', violations: [{ quotaId }] };
  if (retryAfterMs === undefined) return [quota];
  return [quota, { '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: `${retryAfterMs / 1_000}s` }];
}
