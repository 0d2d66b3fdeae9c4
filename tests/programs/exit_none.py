def main():
    print("work")
    raise SystemExit
if __name__ == "__main__":
    main()
print("never")
