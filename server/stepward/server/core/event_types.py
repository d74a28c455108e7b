"""What can happen to a job and its steps: the types of the events in its history."""

from __future__ import annotations

from enum import IntEnum


class EventType(IntEnum):
    """What happened, in the past tense."""

    JobSubmitted = 1
    JobCompleted = 2
    JobCompensationStarted = 3
    JobCompensated = 4
    JobCancelRequested = 5
    JobCancelled = 6
    JobFailed = 7
    JobEscalated = 8
    JobPaused = 9
    JobResumed = 10
    JobTerminated = 11
    JobDeadlinePassed = 12
    JobStuck = 13
    JobDeadlineRenewed = 14
    IncidentResolved = 15
    StepReady = 20
    StepOffered = 21
    StepOfferResent = 22
    StepOfferWithdrawn = 23
    StepStarted = 24
    StepSucceeded = 25
    StepAttemptFailed = 26
    StepAttemptTimedOut = 27
    StepAttemptLost = 28
    StepAttemptUnknown = 29
    StepAttemptStopped = 30
    StepHandedBack = 31
    StepRetryScheduled = 32
    StepFailed = 33
    StepCancelled = 34
    StepOutcomeUnknown = 35
    StepEscalated = 36
    StepAttemptConfirmedStopped = 37
    StaleReportObserved = 38
    StepRetryRequested = 39
    StepSkipped = 40
    StepFoundDone = 41
    StepFoundNotDone = 42
    StepNotTold = 43
    UndoReady = 50
    UndoOffered = 51
    UndoStarted = 52
    UndoSucceeded = 53
    UndoAttemptFailed = 54
    UndoAttemptLost = 55
    UndoAttemptTimedOut = 56
    UndoAttemptUnknown = 57
    UndoRetryScheduled = 58
    UndoFailed = 59
    UndoHandedBack = 60
    UndoAttemptStopped = 61
    UndoOfferResent = 62
    UndoOfferWithdrawn = 63
    UndoOutcomeUnknown = 64
    UndoSkipped = 65
    UndoRetryRequested = 66
    VerifyReady = 80
    VerifyOffered = 81
    VerifyStarted = 82
    VerifyAttemptFailed = 83
    VerifyAttemptLost = 84
    VerifyAttemptTimedOut = 85
    VerifyAttemptUnknown = 86
    VerifyRetryScheduled = 87
    VerifyHandedBack = 88
    VerifyAttemptStopped = 89
    VerifyOfferResent = 90
    VerifyOfferWithdrawn = 91
