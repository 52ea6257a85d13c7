/** Google's names of statuses (google.rpc.Code; cloud.google.com/apis/design/errors). */
const statusNames: Readonly<Record<number, string>> = {
  401: 'UNAUTHENTICATED',
  403: 'PERMISSION_DENIED',
  404: 'NOT_FOUND',
  405: 'UNIMPLEMENTED',
  409: 'ABORTED',
  412: 'FAILED_PRECONDITION',
  429: 'RESOURCE_EXHAUSTED',
  499: 'CANCELLED',
  500: 'INTERNAL',
  504: 'DEADLINE_EXCEEDED',
};

/** `param` and `code` are ours or the provider's. */
type ErrorText = { message: string; param?: string | null; code?: string | null };

/** The body of an error with this status in Google's form. Our code is the reason in its details. */
export function toGoogleError(status: number, { message, param, code }: ErrorText): object {
  const details = [
    ...(code ? [{ '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason: code, domain: 'sluice' }] : []),
    ...(param
      ? [
          {
            '@type': 'type.googleapis.com/google.rpc.BadRequest',
            fieldViolations: [{ field: param, description: message }],
          },
        ]
      : []),
  ];
  const name = statusNames[status] ?? (status < 500 ? 'INVALID_ARGUMENT' : 'UNAVAILABLE');
  return { error: { code: status, message, status: name, ...(details.length === 0 ? {} : { details }) } };
}
